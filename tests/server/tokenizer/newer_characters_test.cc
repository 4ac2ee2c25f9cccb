// Stand-ins keep offsets and class; golden_test.cc compares them with the `tokenizers` library.
#include "server/tokenizer/newer_characters.h"

#include <catch2/catch.hpp>

#include "server/tokenizer/character_classes.h"

namespace spillway::newer_characters_test {
namespace {

TEST_CASE("a newer character becomes an older one of its class and as many bytes") {
  CHECK(older_character(0x10D40) == 0x104A0);  // A digit of Garay, Unicode 16
  CHECK(older_character(0x2EBF0) == 0x20000);  // An ideograph of 15.1
  CHECK(older_character(0x2EE5D) == 0x20000);
  CHECK(older_character(0x2EE5E) == 0x2EE5E);  // Unassigned
  CHECK(older_character('a') == 'a');
  CHECK(older_character(0x10FFFF) == 0x10FFFF);
  size_t changed = 0;
  for (char32_t point = 0; point < 0x110000; ++point) {
    if (point == 0xD800) point = 0xE000;
    const char32_t older = older_character(point);
    if (older == point) continue;
    ++changed;
    std::string before, after;
    append_character(point, &before);
    append_character(older, &after);
    REQUIRE(before.size() == after.size());
    REQUIRE(older_character(older) == older);
  }
  CHECK(changed == 10302);
}

TEST_CASE("text is copied only if it has one") {
  std::string replaced = "untouched";
  CHECK_FALSE(replace_newer_characters("a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80", &replaced));
  CHECK(replaced == "untouched");
  CHECK(replace_newer_characters("x\xF0\x90\xB5\x80y\xE1\xB2\x89", &replaced));
  CHECK(replaced == "x\xF0\x90\x92\xA0y\xEA\x99\x80");
}

}  // namespace
}  // namespace spillway::newer_characters_test
