// What stands for ill-formed bytes: one U+FFFD per maximal subpart, as Python and browsers do.
#include "server/tokenizer/utf8.h"

#include <catch2/catch.hpp>
#include <string>

namespace spillway::utf8_test {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

TEST_CASE("ill-formed sequences become U+FFFD once per maximal subpart") {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80", "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80"},
      {"\xFF\xFF", kBad + kBad},
      {"\xE4\xB8", kBad},
      {"\xE4\xB8"
       "a",
       kBad + "a"},
      {"\xF0\x9F\x98", kBad},
      {"\xC0\xAF", kBad + kBad},                        // Overlong
      {"\xE0\x80\x80", kBad + kBad + kBad},             // Overlong
      {"\xED\xA0\x80", kBad + kBad + kBad},             // A surrogate
      {"\xF4\x90\x80\x80", kBad + kBad + kBad + kBad},  // Beyond U+10FFFF
      {"a\x80"
       "b",
       "a" + kBad + "b"},
      {"\xF1\x80\x80\xE1\x80\xC2", kBad + kBad + kBad},  // Unicode's own example
      {"\xC3\xC3\xA9", kBad + "\xC3\xA9"}};
  for (const auto& [bytes, expected] : cases) {
    CHECK(to_utf8(bytes) == expected);
    CHECK(is_valid_utf8(bytes) == (bytes == expected));
    CHECK(is_valid_utf8(expected));
  }
}

// The definition by trying: bytes are a beginning if some continuation makes them a character.
bool can_be_completed(const std::string& bytes) {
  for (const char* rest :
       {"\x80", "\x80\x80", "\x80\x80\x80", "\xBF", "\xBF\xBF", "\xBF\xBF\xBF"}) {
    if (is_valid_utf8(bytes + rest)) return true;
  }
  return false;
}

TEST_CASE("a prefix is complete unless its last character is not") {
  // Every two-byte end and the interesting three-byte ends behind a complete character.
  for (unsigned first = 0x80; first < 256; ++first) {
    for (unsigned second = 0; second < 256; ++second) {
      const std::string end = {static_cast<char>(first), static_cast<char>(second)};
      size_t held = 0;
      if (can_be_completed(end)) {
        held = 2;
      } else if (can_be_completed(end.substr(1))) {
        held = 1;
      }
      INFO("bytes " << first << ' ' << second);
      REQUIRE(complete_prefix_bytes("a" + end) == 3 - held);
    }
  }
  CHECK(complete_prefix_bytes("a\xF0\x9F\x98") == 1);
  CHECK(complete_prefix_bytes("a\xF0\x9F\x98\x80") == 5);
  CHECK(complete_prefix_bytes("\xF5\x80\x80") == 3);
  CHECK(complete_prefix_bytes("") == 0);
}

}  // namespace
}  // namespace spillway::utf8_test
