#include "server/http/request_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <functional>
#include <optional>

#include "server/http/framing.h"
#include "server/http/random_id.h"

namespace spillway {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;

// Limit on unparsed bytes inside a body: a chunk's size line or trailers.
constexpr size_t kUnparsedBytesMax = 8192;

// Some clients send a line end behind a body (RFC 9112, 2.2). None sends many.
constexpr int kLineEndsMax = 4;

bool harmless_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
}

std::string text_of(boost::beast::string_view view) {
  return {view.data(), view.size()};
}

// "http://host/path" (absolute form) means "/path".
std::string_view origin_form(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (!target.starts_with(kScheme)) return target;
  const size_t slash = target.find('/', kScheme.size());
  return slash == std::string_view::npos ? "/" : target.substr(slash);
}

}  // namespace

// A body that grows as it comes. Beast's string_body sets aside the whole announced length at its
// first byte: a GiB for a file that a sink takes piece by piece.
struct GrowingBody {
  using value_type = std::string;

  class reader {
   public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, std::string& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, error_code& ec) { ec = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& ec) {
      ec = {};
      const size_t before = body_.size();
      for (auto at = boost::asio::buffer_sequence_begin(buffers);
           at != boost::asio::buffer_sequence_end(buffers); ++at) {
        const boost::asio::const_buffer piece(*at);
        body_.append(static_cast<const char*>(piece.data()), piece.size());
      }
      return body_.size() - before;
    }
    void finish(error_code& ec) { ec = {}; }

   private:
    std::string& body_;
  };
};

struct RequestParser::Parts {
  using Beast = http::request_parser<GrowingBody>;

  explicit Parts(const HttpLimits& given) : limits(given) {
    on_chunk_header = [this](uint64_t size, boost::beast::string_view extensions, error_code& ec) {
      extension_bytes += extensions.size();
      if (extension_bytes > limits.chunk_extension_bytes_max) ec = http::error::bad_chunk_extension;
      body_announced += std::min(size, UINT64_MAX - body_announced);
      if (body_announced > body_bytes_max) ec = http::error::body_limit;
    };
  }

  void fail(ApiError why) {
    if (state == State::kHeader) recall_head();
    state = State::kFailed;
    error = std::move(why);
    buffer = {};
    beast.reset();
  }

  void advance() {
    if (state == State::kHeader) read_header();
    if (state == State::kBody) read_body();
  }

  void recall_head();
  void read_header();
  void skip_line_ends();
  void begin_beast(std::string_view block);
  void read_head_fields();
  void read_body();
  void fail_with(const error_code& ec);

  const HttpLimits& limits;
  State state = State::kHeader;
  std::string buffer;   // Not parsed yet
  size_t searched = 0;  // The header's end is not before this
  int line_ends = 0;    // Skipped in front of the present request
  std::optional<Beast> beast;
  std::function<void(uint64_t, boost::beast::string_view, error_code&)> on_chunk_header;
  size_t extension_bytes = 0;
  bool body_seen = false;
  size_t body_bytes_max = SIZE_MAX;
  uint64_t body_announced = 0;  // Bytes, by Content-Length or the chunks that have begun
  HttpRequest head;
  ApiError error;
};

// Of a head that is refused, what the refusal needs, as far as it has come.
void RequestParser::Parts::recall_head() {
  head = {};
  const size_t end = buffer.find("\r\n\r\n");
  const std::string_view block(buffer.data(), end == std::string::npos ? buffer.size() : end + 2);
  if (block.starts_with("HEAD ")) head.method = "HEAD";
  const std::string_view id = header_field(block, "x-request-id");
  if (harmless_id(id)) head.request_id = id;
}

void RequestParser::Parts::skip_line_ends() {
  size_t skipped = 0;
  while (buffer.compare(skipped, 2, "\r\n") == 0) {
    skipped += 2;
    if (++line_ends > kLineEndsMax) return fail(bad_http_request("empty lines in front"));
  }
  buffer.erase(0, skipped);
}

void RequestParser::Parts::read_header() {
  if (searched == 0) skip_line_ends();
  if (state == State::kFailed) return;
  // Input that can never become a request line (TLS, binary) fails at once.
  if (!buffer.empty() && buffer != "\r" && !(buffer[0] >= 'A' && buffer[0] <= 'Z')) {
    return fail(bad_http_request("no method in front"));
  }
  const size_t end = buffer.find("\r\n\r\n", searched);
  if (end == std::string::npos) {
    if (buffer.size() > limits.header_bytes_max) return fail(header_too_large(limits));
    searched = buffer.size() < 3 ? 0 : buffer.size() - 3;
    return;
  }
  const size_t length = end + 4;
  if (length > limits.header_bytes_max) return fail(header_too_large(limits));
  const std::string_view block(buffer.data(), length);
  if (auto refused = check_header_block(block, limits)) return fail(*std::move(refused));
  begin_beast(block);
  if (state == State::kFailed) return;
  buffer.erase(0, length);
  searched = 0;
  line_ends = 0;
}

void RequestParser::Parts::begin_beast(std::string_view block) {
  beast.emplace();
  beast->header_limit(static_cast<std::uint32_t>(limits.header_bytes_max));
  beast->body_limit(boost::none);  // limit_body() knows the route's.
  beast->on_chunk_header(on_chunk_header);
  error_code ec;
  beast->put(boost::asio::buffer(block.data(), block.size()), ec);
  if (ec) return fail_with(ec);
  if (!beast->is_header_done()) return fail(bad_http_request("the header is incomplete"));
  beast->eager(true);
  extension_bytes = 0;
  body_seen = false;
  body_bytes_max = SIZE_MAX;
  body_announced = beast->content_length().value_or(0);
  read_head_fields();
  if (state == State::kFailed) return;
  state = beast->is_done() ? State::kComplete : State::kBody;
}

// Reads the head's fields before the body, so that fields in a chunked trailer never count.
void RequestParser::Parts::read_head_fields() {
  const auto& message = beast->get();
  head = {};
  head.method = text_of(message.method_string());
  const std::string target = text_of(message.target());
  const std::string_view origin = origin_form(target);
  if (!origin.starts_with('/') && origin != "*") {
    return fail(bad_http_request("the target is not a path"));
  }
  const size_t mark = origin.find('?');
  head.path = origin.substr(0, mark);
  if (mark != std::string_view::npos) head.query = origin.substr(mark + 1);
  head.content_type = text_of(message[http::field::content_type]);
  head.content_encoding = text_of(message[http::field::content_encoding]);
  head.host = text_of(message[http::field::host]);
  head.origin = text_of(message[http::field::origin]);
  head.preflight_fields = text_of(message[http::field::access_control_request_headers]);
  for (auto [at, end] = message.equal_range("x-forwarded-for"); at != end; ++at) {
    head.forwarded_for += (head.forwarded_for.empty() ? "" : ",") + text_of(at->value());
  }
  if (const auto length = beast->content_length()) head.content_length = *length;
  head.authorization = text_of(message[http::field::authorization]);
  head.request_id = text_of(message["x-request-id"]);
  if (!harmless_id(head.request_id)) head.request_id = "req-" + random_hex(16);
  head.http_1_0 = message.version() == 10;
  head.keep_alive = message.keep_alive();
}

void RequestParser::Parts::read_body() {
  if (buffer.empty()) return;
  body_seen = true;
  error_code ec;
  const size_t used = beast->put(boost::asio::buffer(buffer.data(), buffer.size()), ec);
  if (ec && ec != http::error::need_more) return fail_with(ec);
  buffer.erase(0, used);
  if (beast->is_done()) {
    state = State::kComplete;
  } else if (buffer.size() > kUnparsedBytesMax) {
    fail(bad_http_request("a chunk's header or trailer is too long"));
  }
}

void RequestParser::Parts::fail_with(const error_code& ec) {
  if (ec == http::error::body_limit) return fail(body_too_large(body_bytes_max));
  if (ec == http::error::header_limit) return fail(header_too_large(limits));
  fail(bad_http_request(ec.message()));  // Beast's fixed texts, without parts of the input.
}

RequestParser::RequestParser(const HttpLimits& limits) : parts_(std::make_unique<Parts>(limits)) {}
RequestParser::~RequestParser() = default;

RequestParser::State RequestParser::feed(std::string_view bytes) {
  if (parts_->state == State::kFailed) return State::kFailed;
  parts_->buffer.append(bytes);
  parts_->advance();
  return parts_->state;
}

RequestParser::State RequestParser::state() const {
  return parts_->state;
}

bool RequestParser::started() const {
  return parts_->state != State::kHeader || (!parts_->buffer.empty() && parts_->buffer != "\r");
}

bool RequestParser::wants_continue() const {
  SPILLWAY_CHECK(parts_->state == State::kBody);
  const auto& message = parts_->beast->get();
  return !parts_->body_seen && !parts_->head.http_1_0 &&
         message.find(http::field::expect) != message.end();
}

RequestParser::State RequestParser::limit_body(size_t bytes_max) {
  SPILLWAY_CHECK(parts_->state == State::kBody || parts_->state == State::kComplete);
  parts_->body_bytes_max = bytes_max;
  if (parts_->body_announced > bytes_max) parts_->fail(body_too_large(bytes_max));
  return parts_->state;
}

void RequestParser::reserve_body() {
  SPILLWAY_CHECK(parts_->state == State::kBody || parts_->state == State::kComplete);
  parts_->beast->get().body().reserve(parts_->head.content_length.value_or(0));
}

std::string RequestParser::take_body() {
  SPILLWAY_CHECK(parts_->state == State::kBody || parts_->state == State::kComplete);
  return std::exchange(parts_->beast->get().body(), {});
}

size_t RequestParser::body_bytes() const {
  return parts_->beast ? parts_->beast->get().body().size() : 0;
}

size_t RequestParser::waiting_bytes() const {
  return parts_->buffer.size();
}

HttpRequest& RequestParser::head() {
  SPILLWAY_CHECK(parts_->state != State::kHeader);
  return parts_->head;
}

void RequestParser::abandon() {
  if (parts_->state != State::kFailed) parts_->fail(bad_http_request("it was abandoned"));
}

HttpRequest RequestParser::take() {
  SPILLWAY_CHECK(parts_->state == State::kComplete);
  HttpRequest request = std::exchange(parts_->head, {});
  request.body = std::move(parts_->beast->get().body());
  parts_->beast.reset();
  parts_->state = State::kHeader;
  return request;
}

const ApiError& RequestParser::error() const {
  SPILLWAY_CHECK(parts_->state == State::kFailed);
  return parts_->error;
}

}  // namespace spillway
