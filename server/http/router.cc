#include "server/http/router.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "kernels/base/check.h"

namespace spillway {
namespace {

// The segments of `path` that "{}" matched, or nothing when it does not match.
std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view path) {
  std::vector<std::string> parameters;
  while (true) {
    const size_t pattern_end = std::min(pattern.find('/', 1), pattern.size());
    const size_t path_end = std::min(path.find('/', 1), path.size());
    const std::string_view want = pattern.substr(0, pattern_end);
    const std::string_view have = path.substr(0, path_end);
    if (want == "/{}" && have.size() > 1) {
      parameters.emplace_back(have.substr(1));
    } else if (want != have) {
      return {};
    }
    pattern.remove_prefix(pattern_end);
    path.remove_prefix(path_end);
    if (pattern.empty() || path.empty()) break;
  }
  if (pattern.empty() && path.empty()) return parameters;
  return {};
}

ApiError unknown_url(const HttpRequest& request) {
  ApiError error;
  error.status = 404;
  // OpenAI's sentence; cut short, and JSON escapes what is odd.
  error.message =
      "Invalid URL (" + request.method.substr(0, 16) + " " + request.path.substr(0, 128) + ")";
  error.code = "unknown_url";
  return error;
}

HttpResponse method_not_allowed(const std::vector<std::string>& allowed) {
  std::string list;
  for (const std::string& method : allowed) list += (list.empty() ? "" : ", ") + method;
  ApiError error;
  error.status = 405;
  error.message = "This URL takes " + list + " only.";
  error.code = "method_not_allowed";
  HttpResponse response = error_response(error);
  response.fields.emplace_back("Allow", list);
  return response;
}

ApiError invalid_api_key() {
  ApiError error;
  error.status = 401;
  error.message = "Send the API key of this server as 'Authorization: Bearer KEY'.";
  error.code = "invalid_api_key";
  return error;
}

ApiError unsupported_media_type() {
  ApiError error;
  error.status = 415;
  error.message = "Only Content-Type: application/json is read here.";
  error.code = "unsupported_media_type";
  return error;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return lower;
}

bool is_json(std::string_view content_type) {
  return lower_case(content_type.substr(0, content_type.find_first_of("; \t"))) ==
         "application/json";
}

}  // namespace

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  // As many steps as `b`, the caller's, is long; `a`'s length shows in nothing.
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < b.size(); ++i) {
    const char other = a.empty() ? '\0' : a[i % a.size()];
    different |= static_cast<unsigned char>(other ^ b[i]);
  }
  return different == 0;
}

Router::Router(std::vector<std::string> api_keys) : api_keys_(std::move(api_keys)) {
  for (const std::string& key : api_keys_) SPILLWAY_CHECK(!key.empty());
}

bool Router::authorised(const HttpRequest& request) const {
  if (api_keys_.empty()) return true;
  constexpr std::string_view kBearer = "bearer ";  // A scheme's case means nothing (RFC 9110, 11.1)
  std::string_view key = request.authorization;
  if (lower_case(key.substr(0, kBearer.size())) != kBearer) return false;
  key.remove_prefix(std::min(key.find_first_not_of(' ', kBearer.size()), key.size()));
  bool found = false;
  for (const std::string& known : api_keys_) found |= equal_in_constant_time(known, key);
  return found;
}

std::variant<const Route*, HttpResponse> Router::find(HttpRequest& request) const {
  const Route* route = nullptr;
  std::vector<std::string> allowed;
  for (const Route& candidate : routes_) {
    auto parameters = match(candidate.path, request.path);
    if (!parameters) continue;
    allowed.push_back(candidate.method);
    if (candidate.method != request.method) continue;
    route = &candidate;
    request.parameters = *std::move(parameters);
  }
  // Who has no key does not learn which paths exist.
  if ((route == nullptr || !route->open) && !authorised(request)) {
    return error_response(invalid_api_key());
  }
  if (allowed.empty()) return error_response(unknown_url(request));
  if (route == nullptr) return method_not_allowed(allowed);
  if (route->json_body && !request.content_type.empty() && !is_json(request.content_type)) {
    return error_response(unsupported_media_type());
  }
  return route;
}

}  // namespace spillway
