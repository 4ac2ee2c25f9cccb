#include "server/http/framing.h"

#include <algorithm>
#include <string>

namespace spillway {
namespace {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// The fields that decide where a request ends.
struct Framing {
  size_t fields = 0;
  int lengths = 0;
  int codings = 0;
  int hosts = 0;
};

std::optional<ApiError> check_field(std::string_view line, bool http_1_0, Framing& seen) {
  if (line.front() == ' ' || line.front() == '\t') {
    return bad_http_request("a header field is folded over lines");
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return bad_http_request("a header field has no colon");
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = trim(line.substr(colon + 1));
  ++seen.fields;
  if (equal_ignoring_case(name, "host")) ++seen.hosts;
  if (equal_ignoring_case(name, "content-length")) {
    ++seen.lengths;
    if (value.empty() || value.find_first_not_of("0123456789") != std::string_view::npos) {
      return bad_http_request("Content-Length is not a number");
    }
  }
  if (equal_ignoring_case(name, "transfer-encoding")) {
    ++seen.codings;
    if (http_1_0) return bad_http_request("HTTP/1.0 has no Transfer-Encoding");
    if (!equal_ignoring_case(value, "chunked")) {
      return bad_http_request("the only Transfer-Encoding read here is chunked");
    }
  }
  if (equal_ignoring_case(name, "expect") && !equal_ignoring_case(value, "100-continue")) {
    ApiError error = bad_http_request("the only expectation met here is 100-continue");
    error.status = 417;
    return error;
  }
  return {};
}

}  // namespace

std::optional<ApiError> check_header_block(std::string_view block, const HttpLimits& limits) {
  Framing seen;
  bool http_1_0 = false;
  bool first = true;
  while (!block.empty()) {
    const size_t end = block.find("\r\n");
    if (end == std::string_view::npos) return bad_http_request("a line has no end");
    const std::string_view line = block.substr(0, end);
    block.remove_prefix(end + 2);
    if (line.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos) {
      return bad_http_request("a header line has a control character");
    }
    if (first) {
      http_1_0 = line.ends_with(" HTTP/1.0");
      first = false;
    } else if (!line.empty()) {
      if (auto error = check_field(line, http_1_0, seen)) return error;
    }
  }
  if (seen.fields > limits.header_fields_max) return header_too_large(limits);
  if (seen.lengths > 1) return bad_http_request("more than one Content-Length");
  if (seen.codings > 1) return bad_http_request("more than one Transfer-Encoding");
  if (seen.lengths + seen.codings > 1) {
    return bad_http_request("both Content-Length and Transfer-Encoding");
  }
  if (seen.hosts > 1 || (seen.hosts == 0 && !http_1_0)) {
    return bad_http_request("there must be one Host field");
  }
  return {};
}

std::string_view header_field(std::string_view block, std::string_view name) {
  while (true) {  // The first line is the request's.
    block.remove_prefix(std::min(block.find("\r\n"), block.size()));
    if (block.empty()) return {};
    block.remove_prefix(2);
    const std::string_view line = block.substr(0, block.find("\r\n"));
    const size_t colon = line.find(':');
    if (line.size() == block.size() || colon == std::string_view::npos) continue;
    if (equal_ignoring_case(line.substr(0, colon), name)) return trim(line.substr(colon + 1));
  }
}

ApiError bad_http_request(std::string_view why) {
  ApiError error;
  error.message = "Bad HTTP request: " + std::string(why) + ".";
  error.code = "bad_http_request";
  return error;
}

ApiError header_too_large(const HttpLimits& limits) {
  ApiError error;
  error.status = 431;
  error.message = "The request's header may have at most " +
                  std::to_string(limits.header_bytes_max) + " bytes and " +
                  std::to_string(limits.header_fields_max) + " fields.";
  error.code = "header_too_large";
  return error;
}

ApiError body_too_large(size_t bytes_max) {
  ApiError error;
  error.status = 413;
  error.message = "The request's body may have at most " + std::to_string(bytes_max) +
                  " bytes. Send less at once.";
  error.code = "request_too_large";
  error.numbers = {{"max_allowed", static_cast<int64_t>(bytes_max)}};
  return error;
}

ApiError body_not_read(const HttpLimits& limits) {
  ApiError error = body_too_large(limits.other_body_bytes_max);
  error.message = "This URL reads no body.";
  return error;
}

ApiError request_too_slow() {
  ApiError error;
  error.status = 408;
  error.message = "The request arrived too slowly.";
  error.code = "request_timeout";
  return error;
}

ApiError too_many_connections() {
  ApiError error = queue_full(5);  // Nothing is known of when clients close theirs.
  error.status = 503;
  error.type = "unavailable_error";
  error.code = "too_many_connections";
  error.message =
      "Too many connections are open. Close idle ones, or raise --connections-per-client-max.";
  return error;
}

ApiError too_many_connections_of(const KeyLimits& key) {
  return key_limit_exceeded(key.name, "connections", key.connections,
                            "have " + std::to_string(key.connections) +
                                " connections open, and has them. Close idle ones",
                            5);
}

}  // namespace spillway
