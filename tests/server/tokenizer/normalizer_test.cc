// Each normalizer by hand; golden_test.cc compares lines of several tokenizers.
#include "server/tokenizer/normalizer.h"

#include <catch2/catch.hpp>
#include <string>

namespace spillway::normalizer_test {
namespace {

using Kind = NormalizerStep::Kind;

NormalizerStep step(Kind kind, std::string content = "", PatternText pattern = {}) {
  NormalizerStep made;
  made.kind = kind;
  made.content = std::move(content);
  made.pattern = std::move(pattern);
  return made;
}

std::string normal(const std::vector<NormalizerStep>& steps, const std::string& text) {
  const auto made = Normalizer::create(steps);
  REQUIRE(made.status().message() == "");
  return made.value().normalize(text).value();
}

TEST_CASE("normal forms") {
  const std::string composed = "\xC3\xA9\xEF\xAC\x81";  // e acute, ligature fi
  const std::string apart = "e\xCC\x81\xEF\xAC\x81";
  CHECK(normal({step(Kind::kNfc)}, apart) == composed);
  CHECK(normal({step(Kind::kNfd)}, composed) == apart);
  CHECK(normal({step(Kind::kNfkc)}, apart) ==
        "\xC3\xA9"
        "fi");
  CHECK(normal({step(Kind::kNfkd)}, composed) ==
        "e\xCC\x81"
        "fi");
  CHECK(normal({}, apart) == apart);
}

TEST_CASE("normal forms are those of Unicode 9") {
  // U+11938, of Unicode 13, would come apart.
  CHECK(normal({step(Kind::kNfd)}, "\xF0\x91\xA4\xB8") == "\xF0\x91\xA4\xB8");
  // U+0EBA has a combining class since Unicode 12, and would change places with U+0323.
  CHECK(normal({step(Kind::kNfd)}, "a\xCC\xA3\xE0\xBA\xBA") == "a\xCC\xA3\xE0\xBA\xBA");
  CHECK(normal({step(Kind::kNfkc)}, "\xE3\x8B\xBF") == "\xE3\x8B\xBF");  // U+32FF, 12.1
}

TEST_CASE("prepend, replace, lower case and strip") {
  const std::string mark = "\xE2\x96\x81";
  const std::vector<NormalizerStep> legacy = {step(Kind::kPrepend, mark),
                                              step(Kind::kReplace, mark, {" ", true})};
  CHECK(normal(legacy, " a b") == mark + mark + "a" + mark + "b");
  CHECK(normal(legacy, "") == "");
  CHECK(normal({step(Kind::kReplace, "-", {R"(\d+)", false})}, "a12b3") == "a-b-");
  CHECK(normal({step(Kind::kReplace, "", {"a", true})}, "banana") == "bnn");
  CHECK(normal({step(Kind::kLowercase)}, "\xC3\x89TAT \xCE\xA3") == "\xC3\xA9tat \xCF\x83");
  NormalizerStep strip = step(Kind::kStrip);
  CHECK(normal({strip}, "\xE3\x80\x80 a b\n") == "a b");
  strip.right = false;
  CHECK(normal({strip}, " a ") == "a ");
  CHECK(normal({step(Kind::kStrip)}, " \n ") == "");
}

TEST_CASE("text that grows without end is an error") {
  const NormalizerStep grow = step(Kind::kReplace, std::string(4096, 'a'), {"a", true});
  const auto made = Normalizer::create({grow, grow, grow});
  const auto text = made.value().normalize("a");
  CHECK(text.status().code() == Code::kCapacity);
  CHECK_THAT(std::string(text.status().message()), Catch::Contains("more than 1048592 bytes"));
}

TEST_CASE("a Replace whose pattern is none is refused") {
  CHECK_FALSE(Normalizer::create({step(Kind::kReplace, "x", {"(", false})}).ok());
}

}  // namespace
}  // namespace spillway::normalizer_test
