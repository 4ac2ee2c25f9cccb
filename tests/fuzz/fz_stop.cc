// Any stops and any text, cut anyhow: the same as a search of the whole text, and nothing of a stop
// or behind it goes out. Input: flags and the number of stops, for each its length and bytes, then
// the text; the text's own bytes say where it is cut.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "server/tokenizer/stop_matcher.h"
#include "server/tokenizer/utf8.h"
#include "tests/server/tokenizer/references.h"

namespace spillway {
namespace {

void check_stops(const std::vector<std::string>& stops, const std::string& text,
                 bool include_stop) {
  auto created = StopMatcher::create(stops, include_stop);
  if (!created.ok()) return;
  StopMatcher matcher = std::move(created).value();
  const auto expected = search_stops(text, stops);
  std::string whole = text;
  if (expected) whole.resize(include_stop ? expected->end : expected->begin);
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t bytes = 1 + static_cast<uint8_t>(text[begin]) % 7;
    out += matcher.push(std::string_view(text).substr(begin, bytes));
    SPILLWAY_CHECK(whole.compare(0, out.size(), out) == 0);
    begin += bytes;
  }
  out += matcher.finish();
  SPILLWAY_CHECK(out == whole);
  SPILLWAY_CHECK(matcher.match().has_value() == expected.has_value());
  if (!expected) return;
  SPILLWAY_CHECK(matcher.match()->stop == expected->stop);
  SPILLWAY_CHECK(matcher.match()->begin == expected->begin);
  SPILLWAY_CHECK(matcher.match()->end == expected->end);
}

}  // namespace
}  // namespace spillway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  if (size == 0) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto take_byte = [&rest] {
    if (rest.empty()) return size_t{0};
    const auto byte = static_cast<uint8_t>(rest[0]);
    rest.remove_prefix(1);
    return size_t{byte};
  };
  const size_t flags = take_byte();
  std::vector<std::string> stops;
  for (size_t i = 0; i < flags / 2 % 8; ++i) {
    const size_t bytes = std::min(1 + take_byte() % 16, rest.size());
    stops.push_back(to_utf8(rest.substr(0, bytes)));
    rest.remove_prefix(bytes);
  }
  check_stops(stops, std::string(rest), flags % 2 == 1);
  return 0;
}
