// The pieces of GPT-2's pattern, by hand; golden_test.cc compares thousands of lines.
#include "server/tokenizer/gpt2_pattern.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace spillway::gpt2_pattern_test {
namespace {

using Pieces = std::vector<std::string>;

Pieces cut(const std::string& text) {
  Pieces pieces;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = next_piece_end(text, begin);
    REQUIRE(end > begin);
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

TEST_CASE("words take one space in front of them, runs of a kind stay together") {
  CHECK(cut("Hello world") == Pieces{"Hello", " world"});
  CHECK(cut("abc123!?x") == Pieces{"abc", "123", "!?", "x"});
  CHECK(cut(" a 1 !") == Pieces{" a", " 1", " !"});
  CHECK(cut("na\xC3\xAFve \xE6\xBC\xA2\xE5\xAD\x97") ==
        Pieces{"na\xC3\xAFve", " \xE6\xBC\xA2\xE5\xAD\x97"});
  CHECK(cut("x\xC2\xB2") == Pieces{"x", "\xC2\xB2"});  // Superscript two is a number.
}

TEST_CASE("contractions are pieces, in lower case only") {
  CHECK(cut("I'm he's we're I've I'll he'd can't") == Pieces{"I", "'m", " he", "'s", " we", "'re",
                                                             " I", "'ve", " I", "'ll", " he", "'d",
                                                             " can", "'t"});
  CHECK(cut("I'M") == Pieces{"I", "'", "M"});
  CHECK(cut("'sup") == Pieces{"'s", "up"});
  CHECK(cut(" 's") == Pieces{" '", "s"});
  CHECK(cut("!'s") == Pieces{"!'", "s"});
  CHECK(cut("'l") == Pieces{"'", "l"});
  CHECK(cut("'") == Pieces{"'"});
}

TEST_CASE("whitespace keeps its last character for the word behind it") {
  CHECK(cut("a   b") == Pieces{"a", "  ", " b"});
  CHECK(cut("a  ") == Pieces{"a", "  "});
  CHECK(cut("a\n\nb") == Pieces{"a", "\n", "\n", "b"});
  CHECK(cut("a\nb") == Pieces{"a", "\n", "b"});
  CHECK(cut("a \nb") == Pieces{"a", " ", "\n", "b"});
  CHECK(cut("a\n b") == Pieces{"a", "\n", " b"});
  CHECK(cut(" ") == Pieces{" "});
  // No-break and ideographic space are whitespace, but only U+0020 joins a word.
  CHECK(cut("a\xC2\xA0\xE3\x80\x80"
            "b") == Pieces{"a", "\xC2\xA0", "\xE3\x80\x80", "b"});
  CHECK(cut("a \xE2\x80\x8B"
            "b") == Pieces{"a", " \xE2\x80\x8B", "b"});  // Zero width: none.
  CHECK(cut("\x1C\x1F") == Pieces{"\x1C\x1F"});          // Nor the separators.
}

TEST_CASE("letters and numbers are those of Unicode 16, whatever the installed ICU knows") {
  CHECK(cut("\xEA\x9F\x9A"
            "a") == Pieces{"\xEA\x9F\x9A"
                           "a"});  // U+A7DA, of 16.0
  CHECK(cut("\xF0\xAE\xAF\xB0"
            "a") == Pieces{"\xF0\xAE\xAF\xB0"
                           "a"});  // U+2EBF0, of 15.1
  CHECK(cut("\xF0\x90\xB5\x80"
            "1") == Pieces{"\xF0\x90\xB5\x80"
                           "1"});  // U+10D40, a digit
  CHECK(cut("\xF0\x90\xB5\xA6"
            "a") == Pieces{"\xF0\x90\xB5\xA6", "a"});  // U+10D66: unassigned
  CHECK(cut("\xEE\x80\x80"
            "a") == Pieces{"\xEE\x80\x80", "a"});  // Private use
}

}  // namespace
}  // namespace spillway::gpt2_pattern_test
