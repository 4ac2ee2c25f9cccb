// The classes of single characters, whatever the installed ICU knows.
#include "server/tokenizer/character_classes.h"

#include <catch2/catch.hpp>
#include <string>

namespace spillway::character_classes_test {
namespace {

std::string lower(char32_t point) {
  std::string text;
  append_lower_case(point, &text);
  return text;
}

TEST_CASE("numbers, words, punctuation and whitespace") {
  CHECK(is_number('7'));
  CHECK(is_number(0xB2));     // Superscript two
  CHECK(is_number(0x2167));   // Roman eight
  CHECK(is_number(0x10D40));  // Of Unicode 16
  CHECK(is_number(0x11DE0));  // Of Unicode 17
  CHECK_FALSE(is_number('a'));
  CHECK(is_word('_'));
  CHECK(is_word(0x200D));  // Joiner
  CHECK(is_word(0x24B6));  // Circled letters are alphabetic, though symbols.
  CHECK_FALSE(is_word('-'));
  CHECK(is_punctuation('$'));
  CHECK(is_punctuation(0x2014));
  CHECK_FALSE(is_punctuation(0x20AC));  // Symbols beyond ASCII
  CHECK_FALSE(is_punctuation(0x2E43));  // Of Unicode 9
  CHECK(is_punctuation(0x166D));        // Of Unicode 8, no more since
  CHECK(is_space(0x3000));
  CHECK_FALSE(is_space(0x200B));
  CHECK(class_of(0xA7DA) == CharacterClass::kLetter);
}

TEST_CASE("lower case is a character's own") {
  CHECK(lower('A') == "a");
  CHECK(lower(0x3A3) == "\xCF\x83");   // Never a final sigma
  CHECK(lower(0x130) == "i\xCC\x87");  // Two characters
  CHECK(lower(0x10D50) == "\xF0\x90\xB5\xB0");
  CHECK(lower(0xA7CB) == "\xC9\xA4");
  CHECK(lower(0xDF) == "\xC3\x9F");
}

TEST_CASE("whitespace at the ends of a text") {
  CHECK(leading_space_end(" \xE3\x80\x80 a ") == 5);
  CHECK(leading_space_end("a") == 0);
  CHECK(leading_space_end("  ") == 2);
  CHECK(trailing_space_begin("a \xE3\x80\x80") == 1);
  CHECK(trailing_space_begin("\xC3\xA9") == 2);
  CHECK(trailing_space_begin("  ") == 0);
  CHECK(trailing_space_begin("") == 0);
}

}  // namespace
}  // namespace spillway::character_classes_test
