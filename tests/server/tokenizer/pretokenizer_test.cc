// Each pre-tokenizer by hand; golden_test.cc compares lines of several tokenizers.
#include "server/tokenizer/pretokenizer.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace spillway::pretokenizer_test {
namespace {

using Kind = PreTokenizerStep::Kind;
using Pieces = std::vector<std::string>;

const std::string kMark = "\xE2\x96\x81";

PreTokenizerStep step(Kind kind) {
  PreTokenizerStep made;
  made.kind = kind;
  made.replacement = kMark;
  return made;
}

PreTokenizerStep split(const std::string& pattern) {
  PreTokenizerStep made = step(Kind::kSplit);
  made.pattern.text = pattern;
  return made;
}

Pieces cut(const std::vector<PreTokenizerStep>& steps, const std::string& text,
           bool at_start = true) {
  const auto made = PreTokenizer::create(steps);
  REQUIRE(made.status().message() == "");
  PieceList list(text, at_start);
  REQUIRE(made.value().cut(&list).ok());
  Pieces pieces;
  for (const auto& span : list.spans) pieces.emplace_back(list.piece(span));
  return pieces;
}

TEST_CASE("ByteLevel cuts as GPT-2 does, or not, and may put a space in front") {
  PreTokenizerStep bytes = step(Kind::kByteLevel);
  CHECK(cut({bytes}, "a b") == Pieces{"a", " b"});
  CHECK(PreTokenizer::create({bytes}).value().ends_in_bytes());
  bytes.add_prefix_space = true;
  CHECK(cut({bytes}, "a b") == Pieces{" a", " b"});
  CHECK(cut({bytes}, " a") == Pieces{" a"});
  CHECK(cut({bytes}, "\na") == Pieces{" ", "\n", "a"});
  bytes.use_regex = false;
  CHECK(cut({bytes}, "a b") == Pieces{" a b"});
  CHECK(cut({bytes}, "").empty());
}

TEST_CASE("behind ByteLevel text is of its alphabet") {
  const std::vector<PreTokenizerStep> steps = {step(Kind::kByteLevel), split("[0-9]")};
  CHECK_FALSE(PreTokenizer::create(steps).value().ends_in_bytes());
  CHECK(cut(steps, "a 12") == Pieces{"a", "\xC4\xA0", "1", "2"});
}

TEST_CASE("Split by a pattern, of newer characters, too, or between matches") {
  CHECK(cut({split(R"(\p{N}{1,3})")}, "a1234") == Pieces{"a", "123", "4"});
  // U+10D40 is a digit of Unicode 16.
  CHECK(cut({split(R"(\p{N})")},
            "a\xF0\x90\xB5\x80"
            "b") == Pieces{"a", "\xF0\x90\xB5\x80", "b"});
  PreTokenizerStep between = split(R"(\p{L}+)");
  between.invert = true;
  between.behavior = SplitBehavior::kRemoved;
  CHECK(cut({between}, "ab, c") == Pieces{"ab", "c"});
  PreTokenizerStep literal = split(".");
  literal.pattern.literal = true;
  literal.behavior = SplitBehavior::kMergedWithPrevious;
  CHECK(cut({literal}, "a.b") == Pieces{"a.", "b"});
}

TEST_CASE("GPT-2's pattern written out is the same as ByteLevel's") {
  const PreTokenizerStep gpt2 =
      split(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
  const PreTokenizerStep by_oniguruma = split("(?:" + gpt2.pattern.text + ")");
  for (const char* text : {"it's  a\n\n test 12!?", " \xC2\xA0x", "'sup \xF0\x9F\x98\x80", "  "}) {
    CHECK(cut({gpt2}, text) == cut({step(Kind::kByteLevel)}, text));
    CHECK(cut({gpt2}, text) == cut({by_oniguruma}, text));
  }
}

TEST_CASE("Digits, Whitespace, WhitespaceSplit and Punctuation") {
  PreTokenizerStep digits = step(Kind::kDigits);
  CHECK(cut({digits},
            "ab12\xC2\xBD"
            "c") == Pieces{"ab", "12\xC2\xBD", "c"});
  digits.individual_digits = true;
  CHECK(cut({digits}, "ab12c") == Pieces{"ab", "1", "2", "c"});
  CHECK(cut({step(Kind::kWhitespace)}, "don't  stop!!") == Pieces{"don", "'", "t", "stop", "!!"});
  CHECK(cut({step(Kind::kWhitespaceSplit)}, " don't \n stop!! ") == Pieces{"don't", "stop!!"});
  CHECK(cut({step(Kind::kPunctuation)}, "a,b!?") == Pieces{"a", ",", "b", "!", "?"});
}

TEST_CASE("Metaspace marks spaces, and the start as its scheme says") {
  PreTokenizerStep meta = step(Kind::kMetaspace);
  CHECK(cut({meta}, "a b", false) == Pieces{kMark + "a", kMark + "b"});
  CHECK(cut({meta}, " a") == Pieces{kMark + "a"});
  CHECK(cut({meta}, kMark + "a") == Pieces{kMark + "a"});
  meta.split = false;
  CHECK(cut({meta}, "a  b") == Pieces{kMark + "a" + kMark + kMark + "b"});
  meta.prepend = PrependScheme::kFirst;
  CHECK(cut({meta}, "a") == Pieces{kMark + "a"});
  CHECK(cut({meta}, "a", false) == Pieces{"a"});
  meta.prepend = PrependScheme::kNever;
  CHECK(cut({meta}, "a") == Pieces{"a"});
  // Only the first piece is at the start, and none when the start was left out.
  meta.prepend = PrependScheme::kFirst;
  CHECK(cut({step(Kind::kWhitespaceSplit), meta}, "a b") == Pieces{kMark + "a", "b"});
  CHECK(cut({step(Kind::kWhitespaceSplit), meta}, " a b") == Pieces{"a", "b"});
}

TEST_CASE("a Split whose pattern is none is refused") {
  CHECK_FALSE(PreTokenizer::create({split("(")}).ok());
}

}  // namespace
}  // namespace spillway::pretokenizer_test
