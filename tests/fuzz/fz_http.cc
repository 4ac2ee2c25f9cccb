// RequestParser on any byte stream: what it reads does not depend on how the bytes were split, it
// stays within its memory, and nothing behind an error is read. The first two bytes choose the
// splits.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/check.h"
#include "server/http/request_parser.h"

namespace spillway {
namespace {

HttpLimits small_limits() {
  HttpLimits limits;
  limits.header_bytes_max = 512;
  limits.header_fields_max = 10;
  limits.body_bytes_max = 256;
  limits.chunk_extension_bytes_max = 32;
  return limits;
}

struct Reading {
  std::string requests;
  bool failed = false;
  friend bool operator==(const Reading&, const Reading&) = default;
};

// Takes every complete request out of the parser, as a connection does.
void drain(RequestParser& parser, Reading& reading) {
  const auto limited = [&] {
    const auto state = parser.state();
    const bool head =
        state == RequestParser::State::kBody || state == RequestParser::State::kComplete;
    return head ? parser.limit_body(small_limits().body_bytes_max) : state;
  };
  while (limited() == RequestParser::State::kComplete) {
    const HttpRequest request = parser.take();
    SPILLWAY_CHECK(request.body.size() <= 256);
    SPILLWAY_CHECK(request.path.starts_with('/') || request.path == "*");
    reading.requests += request.method + "\n" + request.path + "\n" + request.query + "\n" +
                        request.content_type + "\n" + request.authorization + "\n" + request.body +
                        (request.keep_alive ? "\nkeep\n" : "\nclose\n");
    parser.feed("");
  }
  reading.failed = parser.state() == RequestParser::State::kFailed;
}

template <class Step>
Reading read(std::string_view bytes, Step step) {
  const HttpLimits limits = small_limits();
  RequestParser parser(limits);
  Reading reading;
  while (!bytes.empty() && !reading.failed) {
    const size_t count = std::min<size_t>(step(), bytes.size());
    parser.feed(bytes.substr(0, count));
    bytes.remove_prefix(count);
    drain(parser, reading);
  }
  if (reading.failed) {
    parser.feed("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    SPILLWAY_CHECK(parser.state() == RequestParser::State::kFailed);
    SPILLWAY_CHECK(parser.error().status >= 400 && parser.error().status < 500);
  }
  return reading;
}

}  // namespace
}  // namespace spillway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  uint32_t state = 1u + data[0] + 256u * data[1];
  const Reading whole = read(bytes, [&] { return bytes.size(); });
  const Reading single = read(bytes, [] { return size_t{1}; });
  const Reading split = read(bytes, [&] {
    state = state * 1'664'525u + 1'013'904'223u;
    return size_t{1} + (state >> 24) % 17;
  });
  SPILLWAY_CHECK(whole == single);
  SPILLWAY_CHECK(whole == split);
  return 0;
}
