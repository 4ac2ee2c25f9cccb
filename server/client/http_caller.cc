#include "server/client/http_caller.h"

#include <algorithm>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <utility>
#include <vector>

namespace spillway {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::generic::stream_protocol;
using boost::system::error_code;

constexpr size_t kUploadPieceBytes = size_t{256} << 10;
constexpr auto kTurn = std::chrono::milliseconds(100);

std::chrono::nanoseconds duration(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

Status interruption() {
  return {Code::kCancelled, "interrupted"};
}

// One call. Each step begins an operation of its own and runs it to its end.
class OneCall {
 public:
  OneCall(const ServerAddress& address, const HttpCaller::Options& options)
      : address_(address), options_(options) {}

  Result<HttpReply> run(const HttpCall& call);

 private:
  using Parser = http::response_parser<http::buffer_body>;

  // Begins an operation with a handler, and waits for it. False: it failed, or was interrupted;
  // error_ says why.
  template <class Begin>
  bool wait(double seconds, Begin begin) {
    bool done = false;
    error_ = {};
    stream_.expires_after(duration(seconds));
    begin([&](const error_code& ec, const auto&...) {
      error_ = ec;
      done = true;
    });
    while (!done) {
      io_.restart();
      io_.run_for(kTurn);
      if (done || to_its_end_ || interrupted_) continue;
      if (!options_.interrupted || !options_.interrupted()) continue;
      interrupted_ = true;
      resolver_.cancel();
      stream_.close();  // What waits for it ends with an error.
    }
    return !error_ && !interrupted_;
  }

  std::vector<stream_protocol::endpoint> endpoints();
  bool connect();
  bool write_head(const HttpCall& call);
  Result<bool> write_pieces(const BodyPieces& pieces);
  bool read_head(Parser& parser);
  Result<bool> read_body(Parser& parser, const HttpCall& call);
  bool fail(const std::string& what);

  const ServerAddress& address_;
  const HttpCaller::Options& options_;
  asio::io_context io_;
  asio::ip::tcp::resolver resolver_{io_};
  beast::basic_stream<stream_protocol> stream_{io_};
  beast::flat_buffer buffer_;
  error_code error_;
  bool to_its_end_ = false;
  bool interrupted_ = false;
  HttpReply reply_;
};

bool OneCall::fail(const std::string& what) {
  reply_.status = 0;
  const std::string why = error_ == beast::error::timeout ? "it takes too long" : error_.message();
  if (reply_.trouble.empty()) reply_.trouble = what + " " + address_.text + ": " + why;
  return false;
}

std::vector<stream_protocol::endpoint> OneCall::endpoints() {
  std::vector<stream_protocol::endpoint> found;
  if (!address_.socket.empty()) {
    try {
      found.emplace_back(asio::local::stream_protocol::endpoint(address_.socket));
    } catch (const boost::system::system_error& error) {  // The path is too long.
      error_ = error.code();
    }
    return found;
  }
  std::string host = address_.host;
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  asio::ip::tcp::resolver::results_type results;
  wait(options_.connect_seconds, [&](auto handler) {
    resolver_.async_resolve(host, address_.port,
                            [&results, handler](const error_code& ec, const auto& all) {
                              results = all;
                              handler(ec);
                            });
  });
  for (const auto& result : results) found.emplace_back(result.endpoint());
  return found;
}

bool OneCall::connect() {
  const std::vector<stream_protocol::endpoint> all = endpoints();
  for (const stream_protocol::endpoint& endpoint : all) {
    if (interrupted_) return false;
    if (wait(options_.connect_seconds,
             [&](auto handler) { stream_.async_connect(endpoint, handler); })) {
      return true;
    }
    stream_.close();
  }
  return fail(all.empty() ? "find" : "connect to");
}

bool OneCall::write_head(const HttpCall& call) {
  http::request<http::empty_body> head;
  head.method_string(call.method);
  head.target(address_.base + call.path);
  head.set(http::field::host, address_.host_field());
  head.set(http::field::user_agent, "spillway/" SPILLWAY_VERSION);
  head.set(http::field::connection, "close");
  if (!options_.api_key.empty()) {
    head.set(http::field::authorization, "Bearer " + options_.api_key);
  }
  const uint64_t bytes = call.pieces ? call.pieces->bytes : call.body.size();
  if (!call.content_type.empty()) {
    head.set(http::field::content_type, call.content_type);
    head.set(http::field::content_length, std::to_string(bytes));
  }
  // A refusal comes before the body is sent for nothing.
  if (call.pieces) head.set(http::field::expect, "100-continue");
  http::request_serializer<http::empty_body> serializer(head);
  reply_.sent = true;
  if (!wait(options_.stall_seconds,
            [&](auto handler) { http::async_write_header(stream_, serializer, handler); })) {
    return fail("send to");
  }
  if (call.pieces || call.body.empty()) return true;
  if (wait(options_.stall_seconds,
           [&](auto handler) { asio::async_write(stream_, asio::buffer(call.body), handler); })) {
    return true;
  }
  return fail("send to");
}

// False: the connection was lost, or the server answers before it has all.
Result<bool> OneCall::write_pieces(const BodyPieces& pieces) {
  for (uint64_t sent = 0; sent < pieces.bytes;) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::string piece, pieces.next());
    if (piece.empty() || piece.size() > pieces.bytes - sent) {
      return corruption("the body of a request is not as long as it was announced");
    }
    // Piece by piece, since the time is of one operation.
    if (!wait(options_.stall_seconds,
              [&](auto handler) { asio::async_write(stream_, asio::buffer(piece), handler); })) {
      return fail("send to");
    }
    sent += piece.size();
    error_code ignored;
    if (stream_.socket().available(ignored) > 0) return false;
  }
  return true;
}

bool OneCall::read_head(Parser& parser) {
  parser.body_limit(boost::none);
  parser.header_limit(64 << 10);
  if (wait(options_.stall_seconds,
           [&](auto handler) { http::async_read_header(stream_, buffer_, parser, handler); })) {
    return true;
  }
  return fail("read the answer of");
}

Result<bool> OneCall::read_body(Parser& parser, const HttpCall& call) {
  std::string piece(kUploadPieceBytes, '\0');
  const bool taken = call.take && parser.get().result_int() == 200;
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    wait(options_.stall_seconds,
         [&](auto handler) { http::async_read_some(stream_, buffer_, parser, handler); });
    if (error_ == http::error::need_buffer) error_ = {};
    if (interrupted_) return interruption();
    if (error_) return fail("read the answer of");
    const std::string_view got(piece.data(), piece.size() - parser.get().body().size);
    if (taken) {
      if (!got.empty()) SPILLWAY_RETURN_IF_ERROR(call.take(got));
    } else if (reply_.body.size() + got.size() > options_.held_bytes_max) {
      reply_.trouble = "the answer of " + address_.text + " is too long to be one of Spillway's";
      reply_.status = 0;
      return false;
    } else {
      reply_.body += got;
    }
  }
  return true;
}

// The number of seconds in a Retry-After; a date, which nobody sends here, counts as none.
std::optional<int> seconds_of(std::string_view text) {
  int seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || seconds < 0) return {};
  return seconds;
}

Result<HttpReply> OneCall::run(const HttpCall& call) {
  to_its_end_ = call.to_its_end;
  bool writing = connect() && write_head(call);
  if (interrupted_) return interruption();
  if (reply_.status == 0 && !reply_.trouble.empty() && !reply_.sent) return reply_;
  std::optional<Parser> parser(std::in_place);
  if (writing && call.pieces) {
    const bool read = read_head(*parser);
    if (interrupted_) return interruption();
    if (!read) return reply_;
    if (parser->get().result_int() == 100) {
      SPILLWAY_ASSIGN_OR_RETURN(writing, write_pieces(*call.pieces));
      if (interrupted_) return interruption();
      parser.emplace();
    }
  }
  // Where sending failed, the answer may be there all the same: the server refused the rest.
  while (!parser->is_header_done()) {
    const bool read = read_head(*parser);
    if (interrupted_) return interruption();
    if (!read) return reply_;
    const int status = static_cast<int>(parser->get().result_int());
    if (status >= 100 && status < 200) parser.emplace();
  }
  const auto& head = parser->get();
  reply_.status = static_cast<int>(head.result_int());
  reply_.trouble.clear();
  const auto field = [&](const char* name) {
    const auto value = head[name];
    return std::string_view(value.data(), value.size());
  };
  reply_.retry_after_seconds = seconds_of(field("Retry-After"));
  reply_.retry_is_useless = field("x-should-retry") == "false";
  SPILLWAY_ASSIGN_OR_RETURN(const bool whole, read_body(*parser, call));
  (void)whole;  // Otherwise the reply says so.
  return reply_;
}

}  // namespace

HttpCaller::HttpCaller(ServerAddress address, Options options)
    : address_(std::move(address)), options_(std::move(options)) {}

Result<HttpReply> HttpCaller::call(const HttpCall& call) const {
  if (interrupted()) return interruption();
  OneCall once(address_, options_);
  return once.run(call);
}

}  // namespace spillway
