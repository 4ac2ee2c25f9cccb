// HTTP requests and answers as plain values, and an answer's bytes. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/body_source.h"
#include "server/http/error.h"

namespace spillway {

class BodySink;

struct HttpRequest {
  std::string method;
  std::string path;   // Without the query; never decoded, so routes match literally
  std::string query;  // Without '?'
  std::string content_type;
  std::string content_encoding;
  std::string authorization;
  std::string host;
  std::string origin;            // The web page's that caused the request; empty: none
  std::string preflight_fields;  // A preflight's Access-Control-Request-Headers
  std::string forwarded_for;     // X-Forwarded-For, several of them joined: anyone can send it
  std::optional<uint64_t> content_length;
  std::string request_id;  // x-request-id if it is harmless, else a fresh one
  std::string body;
  std::shared_ptr<BodySink> sink;  // Of a route with one: has the whole body, and `body` is empty
  std::vector<std::string> parameters;  // The path segments matched by the route's `{}`
  bool http_1_0 = false;
  bool keep_alive = true;
  std::shared_ptr<void> body_lease;  // Its share of HttpLimits::bodies_bytes_max
  uint64_t client = 0;   // The client: its API key's number, or without keys its address's
  uint64_t api_key = 0;  // Its API key's number, from 1; 0: the server asks for none
};

using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  HttpFields fields;                        // Besides the fields of every answer
  std::shared_ptr<BodySource> source = {};  // Of a large body, in place of `body`
  bool close = false;                       // The connection ends after this answer
  std::shared_ptr<void> lease;              // Held until the answer is written
  std::string error = {};  // The code of the error that it tells, for log and metrics
};

HttpResponse error_response(const ApiError& error);

// The parts of an answer that depend on the connection.
struct AnswerContext {
  std::string_view request_id;
  bool keep_alive = true;
  bool head_only = false;  // For a HEAD request: the fields of the whole answer, no body
  HttpFields fields = {};  // Besides the answer's own
};

// Head and body. Field values must not contain control characters (REQUIRES).
std::string serialise(const HttpResponse& response, const AnswerContext& context);

// The head of an event stream; `chunked` unless the client speaks HTTP/1.0.
std::string event_stream_head(const HttpFields& fields, const AnswerContext& context, bool chunked);

// One chunk of a chunked body. REQUIRES: not empty.
std::string chunk(std::string_view payload);

constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace spillway
