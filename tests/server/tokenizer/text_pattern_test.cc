// Matches as `tokenizers` takes them from Oniguruma, and the limits of time and memory.
#include "server/tokenizer/text_pattern.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace spillway::text_pattern_test {
namespace {

using Matches = std::vector<std::pair<size_t, size_t>>;

Status search(const std::string& pattern, const std::string& text, Matches* matches) {
  const auto made = TextPattern::create({pattern, false});
  REQUIRE(made.status().message() == "");
  std::vector<PatternMatch> found;
  const Status status = TextPattern::Search(made.value(), text.size()).find_all(text, text, &found);
  for (const PatternMatch& match : found) matches->emplace_back(match.begin, match.end);
  return status;
}

Matches matches_of(const std::string& pattern, const std::string& text) {
  Matches matches;
  REQUIRE(search(pattern, text, &matches).ok());
  return matches;
}

TEST_CASE("matches go from left to right and see only their own text") {
  CHECK(matches_of(R"(\p{L}+|\p{N})", "ab1 \xC3\xA9") == Matches{{0, 2}, {2, 3}, {4, 6}});
  CHECK(matches_of(R"(\s+(?!\S)|\s+)", "a   b  ") == Matches{{1, 3}, {3, 4}, {5, 7}});
  CHECK(matches_of("(?i:'S)", "'s'\xC5\xBF") == Matches{{0, 2}, {2, 5}});  // A long s is an s.
  CHECK(matches_of("x", "abc").empty());
  CHECK(matches_of("x", "").empty());
}

TEST_CASE("an empty match never follows another directly") {
  CHECK(matches_of("b*", "abc") == Matches{{0, 0}, {1, 2}, {3, 3}});
  CHECK(matches_of("b*", "\xC3\xA9") == Matches{{0, 0}, {2, 2}});
  CHECK(matches_of("(?=a)", "aa") == Matches{{0, 0}, {1, 1}});
}

TEST_CASE("literal patterns are searched in the text as it is") {
  const auto made = TextPattern::create({"a.", true});
  std::vector<PatternMatch> found;
  REQUIRE(TextPattern::Search(made.value(), 9).find_all("?????????", "a.a.aa.ab", &found).ok());
  REQUIRE(found.size() == 3);
  CHECK(found[2].begin == 5);
}

TEST_CASE("what is no pattern is refused") {
  CHECK_THAT(std::string(TextPattern::create({"(a", false}).status().message()),
             Catch::Contains("no regular expression"));
  CHECK_THAT(std::string(TextPattern::create({"[[:PUNCT:]]", false}).status().message()),
             Catch::Contains("punct"));
  CHECK_FALSE(TextPattern::create({"", true}).ok());
  CHECK_FALSE(TextPattern::create({std::string(kPatternBytesMax + 1, 'a'), false}).ok());
}

TEST_CASE("a pattern that tries too much is an error, soon") {
  Matches matches;
  const Status exponential = search("(?:a|aa)+$", std::string(3000, 'a') + "!", &matches);
  CHECK(exponential.code() == Code::kCapacity);
  CHECK_THAT(std::string(exponential.message()), Catch::Contains("too many ways"));
  // Backtracking over a long run once is fine.
  CHECK(search(R"(\s*[\r\n]+|\s+)", std::string(500'000, ' '), &matches).ok());
  const Status run = search(R"(\p{L}+)", std::string(kPatternStackMax + 1, 'a'), &matches);
  CHECK(run.code() == Code::kCapacity);
  CHECK_THAT(std::string(run.message()), Catch::Contains("a run of over 1048576 characters"));
}

TEST_CASE("looking far ahead again and again without backtracking is an error, too", "[slow]") {
  Matches matches;
  const Status quadratic = search("a+b|a", std::string(200'000, 'a'), &matches);
  CHECK(quadratic.code() == Code::kCapacity);
  CHECK_THAT(std::string(quadratic.message()), Catch::Contains("takes too long"));
}

}  // namespace
}  // namespace spillway::text_pattern_test
