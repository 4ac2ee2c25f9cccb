#include "server/http/message.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <charconv>
#include <ctime>

namespace spillway {
namespace {

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  const size_t length = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return {text, length};
}

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f; });
}

void add_field(std::string& head, std::string_view name, std::string_view value) {
  SPILLWAY_CHECK(printable(name) && printable(value));  // A line break would forge a field.
  head.append(name).append(": ").append(value).append("\r\n");
}

std::string start_head(int status, const HttpFields& fields, const AnswerContext& context) {
  namespace http = boost::beast::http;
  const auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  std::string head = "HTTP/1.1 " + std::to_string(status) + " ";
  head.append(reason.data(), reason.size()).append("\r\n");
  add_field(head, "Date", date());
  add_field(head, "Connection", context.keep_alive ? "keep-alive" : "close");
  add_field(head, "x-request-id", context.request_id);
  for (const auto& [name, value] : fields) add_field(head, name, value);
  for (const auto& [name, value] : context.fields) add_field(head, name, value);
  return head;
}

}  // namespace

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error.json();
  response.error = error.code;
  if (error.retry_after_seconds > 0) {
    response.fields.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  if (error.retry_is_useless) response.fields.emplace_back("x-should-retry", "false");
  if (error.status == 401) response.fields.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::string serialise(const HttpResponse& response, const AnswerContext& context) {
  std::string text = start_head(response.status, response.fields, context);
  add_field(text, "Content-Type", response.content_type);
  const uint64_t bytes = response.source ? response.source->bytes() : response.body.size();
  add_field(text, "Content-Length", std::to_string(bytes));
  text.append("\r\n");
  if (!context.head_only) text.append(response.body);
  return text;
}

std::string event_stream_head(const HttpFields& fields, const AnswerContext& context,
                              bool chunked) {
  std::string head = start_head(200, fields, context);
  add_field(head, "Content-Type", "text/event-stream; charset=utf-8");
  add_field(head, "Cache-Control", "no-cache");
  add_field(head, "X-Accel-Buffering", "no");  // nginx would buffer events
  if (chunked) add_field(head, "Transfer-Encoding", "chunked");
  return head.append("\r\n");
}

std::string chunk(std::string_view payload) {
  SPILLWAY_CHECK(!payload.empty());  // A chunk of no bytes ends the body.
  char size[20];
  const auto end = std::to_chars(size, size + sizeof size, payload.size(), 16).ptr;
  std::string text(size, end);
  text.reserve(text.size() + payload.size() + 4);
  return text.append("\r\n").append(payload).append("\r\n");
}

}  // namespace spillway
