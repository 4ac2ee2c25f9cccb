#include "server/http/access.h"

#include <algorithm>

namespace spillway {
namespace {

// "http://example.org:8000" -> "example.org:8000"
std::string_view authority_of(std::string_view origin) {
  const size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? origin : origin.substr(scheme + 3);
}

// "example.org:8000" -> "example.org", "[::1]:8000" -> "[::1]"
std::string_view without_port(std::string_view authority) {
  const size_t bracket = authority.starts_with('[') ? authority.find(']') : 0;
  if (bracket == std::string_view::npos) return authority;
  return authority.substr(0, authority.find(':', bracket));
}

// Whether no foreign DNS server can control the name.
bool is_local_name(std::string_view name) {
  if (name.starts_with('[')) return true;
  if (name.find_first_not_of("0123456789.") == std::string_view::npos) return true;
  return name == "localhost" || name.ends_with(".localhost");
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
  const std::string own = lower_case(request.host);
  const std::string name(without_port(own));
  if (local_names_only && !own.empty() && !is_local_name(name) && name != lower_case(host)) {
    return forbidden(
        "This server asks for no API key and listens on this machine only, so it answers requests "
        "for this machine's own names only. Start it with an API key, with --host NAME, or with "
        "--allowed-origins.",
        "forbidden_host");
  }
  if (!request.origin.empty() && lower_case(authority_of(request.origin)) != own) {
    return forbidden(
        "This server asks for no API key, so it does not answer web pages of other sites. Start "
        "it with an API key, or with --allowed-origins ORIGIN.",
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

}  // namespace spillway
