#include "server/http/router.h"

#include <algorithm>
#include <optional>

#include "kernels/base/check.h"

namespace spillway {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// "a%2Fb" -> "a/b"; empty when a '%' is followed by anything other than two hex digits.
std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) return {};
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

// The segments of `path` that "{}" and "{*}" matched, or nothing when it does not match.
std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view path) {
  std::vector<std::string> parameters;
  while (true) {
    const size_t pattern_end = std::min(pattern.find('/', 1), pattern.size());
    const std::string_view want = pattern.substr(0, pattern_end);
    const size_t path_end = want == "/{*}" ? path.size() : std::min(path.find('/', 1), path.size());
    const std::string_view have = path.substr(0, path_end);
    if ((want == "/{}" || want == "/{*}") && have.size() > 1) {
      auto parameter = percent_decoded(have.substr(1));
      if (!parameter) return {};
      parameters.push_back(*std::move(parameter));
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
  // OpenAI's wording; the path is cut short, and JSON escapes odd bytes.
  error.message =
      "Invalid URL (" + request.method.substr(0, 16) + " " + request.path.substr(0, 128) + ")";
  error.code = "unknown_url";
  return error;
}

std::string list_of(const std::vector<std::string>& methods) {
  std::string list;
  for (const std::string& method : methods) list += (list.empty() ? "" : ", ") + method;
  return list;
}

HttpResponse method_not_allowed(const std::vector<std::string>& allowed) {
  const std::string list = list_of(allowed);
  ApiError error;
  error.status = 405;
  error.message = "This URL takes " + list + " only.";
  error.code = "method_not_allowed";
  HttpResponse response = error_response(error);
  response.fields.emplace_back("Allow", list);
  return response;
}

// "content-type, x-stainless-os": names of fields (RFC 9110, 5.6.2), and not too many.
bool is_list_of_names(std::string_view list) {
  constexpr size_t kBytesMax = 1024;
  const auto token = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  };
  if (list.empty() || list.size() > kBytesMax) return false;
  while (true) {
    const size_t comma = std::min(list.find(','), list.size());
    std::string_view name = list.substr(0, comma);
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (name.empty() || !std::all_of(name.begin(), name.end(), token)) return false;
    if (comma == list.size()) return true;
    list.remove_prefix(comma + 1);
  }
}

// Answers a browser's preflight: whether a page may send its request. The page's origin is allowed,
// so that it may send any fields, as OpenAI's JavaScript package sends a dozen x-stainless-*.
HttpResponse preflight(const HttpRequest& request, const std::vector<std::string>& allowed) {
  const std::string& asked = request.preflight_fields;
  HttpResponse response;
  response.fields = {
      {"Access-Control-Allow-Methods", list_of(allowed)},
      {"Access-Control-Allow-Headers",
       is_list_of_names(asked) ? asked : "authorization, content-type, x-request-id"},
      {"Access-Control-Max-Age", "600"}};
  return response;
}

ApiError unsupported_media_type(std::string message) {
  ApiError error;
  error.status = 415;
  error.message = std::move(message);
  error.code = "unsupported_media_type";
  return error;
}

// The charset of "application/json; charset=utf-8", in lower case and without quotes.
std::string charset_of(std::string_view content_type) {
  const std::string lower = lower_case(content_type);
  const size_t at = lower.find("charset=");
  if (at == std::string::npos) return "";
  std::string value = lower.substr(at + 8, lower.find(';', at) - (at + 8));
  std::erase_if(value, [](char c) { return c == '"' || c == ' ' || c == '\t'; });
  return value;
}

std::optional<ApiError> check_content(const HttpRequest& request) {
  const std::string_view type = request.content_type;
  if (!type.empty() &&
      lower_case(type.substr(0, type.find_first_of("; \t"))) != "application/json") {
    return unsupported_media_type("Only Content-Type: application/json is read here.");
  }
  const std::string charset = charset_of(type);
  if (!charset.empty() && charset != "utf-8" && charset != "utf8") {
    return unsupported_media_type("Only charset=utf-8 is read here.");
  }
  const std::string coding = lower_case(request.content_encoding);
  if (!coding.empty() && coding != "identity") {
    return unsupported_media_type("No Content-Encoding is read here: send the body as it is.");
  }
  return {};
}

}  // namespace

Router::Router(Access access) : access_(std::move(access)) {
  for (const std::string& key : access_.api_keys) SPILLWAY_CHECK(!key.empty());
}

std::variant<const Route*, HttpResponse> Router::find(HttpRequest& request) const {
  const Route* route = nullptr;
  std::vector<std::string> allowed;
  for (const Route& candidate : routes_) {
    auto parameters = match(candidate.path, request.path);
    if (!parameters) continue;
    allowed.push_back(candidate.method);
    const bool head = candidate.method == "GET" && request.method == "HEAD";
    if (candidate.method == "GET") allowed.emplace_back("HEAD");
    if (candidate.method != request.method && !head) continue;
    route = &candidate;
    request.parameters = *std::move(parameters);
  }
  const bool known = !allowed.empty();
  if (!known && other_paths_) allowed = {"GET", "HEAD", "POST", "DELETE"};
  // Browsers send preflights without the key.
  if (request.method == "OPTIONS" && !request.origin.empty() && !allowed.empty() &&
      access_.allows_origin(request.origin)) {
    return preflight(request, allowed);
  }
  // Clients without a key do not learn which paths exist.
  if (route == nullptr || !route->open) {
    if (const auto refusal = access_.refuse(request)) return error_response(*refusal);
  }
  if (!known) return other_paths_ ? other_paths_() : error_response(unknown_url(request));
  if (route == nullptr) return method_not_allowed(allowed);
  if (route->json_body) {
    if (const auto refusal = check_content(request)) return error_response(*refusal);
  }
  return route;
}

}  // namespace spillway
