#include "server/http/access.h"

#include <arpa/inet.h>

#include <algorithm>

namespace spillway {
namespace {

// "http://example.org:8000" -> "example.org:8000"
std::string_view authority_of(std::string_view origin) {
  const size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? origin : origin.substr(scheme + 3);
}

// "example.org:8000" -> "example.org", "[::1]:8000" -> "[::1]". A dot at the end, which says that a
// name is complete, is no part of it.
std::string_view name_of(std::string_view authority) {
  const size_t bracket = authority.starts_with('[') ? authority.find(']') : 0;
  if (bracket == std::string_view::npos) return authority;
  std::string_view name = authority.substr(0, authority.find(':', bracket));
  if (name.ends_with('.')) name.remove_suffix(1);
  return name;
}

// "127.0.0.1", "[::1]", "[fe80::1%eth0]"
bool is_address(std::string_view name) {
  in6_addr bytes;
  if (!name.starts_with('[')) return inet_pton(AF_INET, std::string(name).c_str(), &bytes) == 1;
  if (!name.ends_with(']')) return false;
  name = name.substr(1, name.size() - 2);
  return inet_pton(AF_INET6, std::string(name.substr(0, name.find('%'))).c_str(), &bytes) == 1;
}

// Whether no foreign name server decides what the name resolves to: an address is not resolved, and
// browsers resolve localhost themselves.
bool is_local_name(std::string_view name) {
  return is_address(name) || name == "localhost" || name.ends_with(".localhost");
}

ApiError forbidden(std::string message, std::string_view code) {
  ApiError error;
  error.status = 403;
  error.type = "permission_error";
  error.message = std::move(message);
  error.code = code;
  return error;
}

ApiError invalid_api_key() {
  ApiError error;
  error.status = 401;
  error.message = "Send the API key of this server as 'Authorization: Bearer KEY'.";
  error.code = "invalid_api_key";
  return error;
}

}  // namespace

bool Access::allows_origin(std::string_view origin) const {
  const std::string lower = lower_case(origin);
  return std::any_of(
      allowed_origins.begin(), allowed_origins.end(),
      [&](const std::string& allowed) { return allowed == "*" || lower_case(allowed) == lower; });
}

size_t Access::key_of(const HttpRequest& request) const {
  constexpr std::string_view kBearer = "bearer ";  // A scheme's case means nothing (RFC 9110, 11.1)
  std::string_view key = request.authorization;
  if (lower_case(key.substr(0, kBearer.size())) != kBearer) return 0;
  key.remove_prefix(std::min(key.find_first_not_of(' ', kBearer.size()), key.size()));
  size_t found = 0;
  for (size_t i = 0; i < api_keys.size(); ++i) {
    found = std::max(found, equal_in_constant_time(api_keys[i], key) ? i + 1 : 0);
  }
  return found;
}

bool Access::knows_host(std::string_view host_field) const {
  const std::string own = lower_case(host_field);
  const std::string_view name = name_of(own);
  if (own.empty() || is_local_name(name)) return true;
  if (name.empty()) return false;
  if (name == lower_case(host)) return true;
  return std::any_of(allowed_hosts.begin(), allowed_hosts.end(), [&](const std::string& allowed) {
    return allowed == "*" || lower_case(allowed) == name;
  });
}

std::string Access::key_name(uint64_t number) const {
  if (number == 0) return {};
  const std::string& name = limits_of(number).name;
  return name.empty() ? "key-" + std::to_string(number) : name;
}

const KeyLimits& Access::limits_of(uint64_t api_key) const {
  static const KeyLimits kNone;
  return api_key == 0 || api_key > key_limits.size() ? kNone : key_limits[api_key - 1];
}

std::optional<ApiError> Access::refuse(const HttpRequest& request) const {
  if (!api_keys.empty()) {
    if (key_of(request) > 0) return {};
    return invalid_api_key();
  }
  if (!request.origin.empty() && allows_origin(request.origin)) return {};
  if (known_names_only && !knows_host(request.host)) {
    return forbidden(
        "The name in this request's Host is none of this server's. A server that asks for no API "
        "key answers to IP addresses, to localhost, and to the names that it was started with: add "
        "--allowed-host NAME, or start it with an API key.",
        "forbidden_host");
  }
  if (!request.origin.empty() &&
      lower_case(authority_of(request.origin)) != lower_case(request.host)) {
    return forbidden(
        "This server asks for no API key, so it does not answer web pages of other sites. Start "
        "it with --allowed-origins ORIGIN, or with an API key.",
        "forbidden_origin");
  }
  return {};
}

HttpFields Access::cors_fields(const HttpRequest& request) const {
  if (request.origin.empty() || !allows_origin(request.origin)) return {};
  // Only printable: the parser refuses other bytes in a header, but a field must not be forged by
  // chance.
  const bool plain = std::all_of(request.origin.begin(), request.origin.end(),
                                 [](char c) { return c > ' ' && c < 0x7f; });
  if (!plain) return {};
  return {{"Access-Control-Allow-Origin", request.origin},
          {"Access-Control-Expose-Headers", "x-request-id, x-ignored-parameters, Retry-After"},
          {"Vary", "Origin"}};
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  // Takes as many steps as `b`, the caller's, is long; `a`'s length does not affect the time.
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < b.size(); ++i) {
    const char other = a.empty() ? '\0' : a[i % a.size()];
    different |= static_cast<unsigned char>(other ^ b[i]);
  }
  return different == 0;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return lower;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace spillway
