// Stop strings in a stream against a search of the whole text.
#include "server/tokenizer/stop_matcher.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "server/tokenizer/utf8.h"
#include "tests/server/tokenizer/references.h"

namespace spillway::stop_matcher_test {
namespace {

using Stops = std::vector<std::string>;

StopMatcher make(const Stops& stops, bool include_stop = false) {
  return StopMatcher::create(stops, include_stop).value();
}

TEST_CASE("text goes out as soon as no stop can begin in it") {
  StopMatcher matcher = make({"\n\n", "END"});
  CHECK(matcher.push("Hello") == "Hello");
  CHECK(matcher.push(" E") == " ");
  CHECK(matcher.push("N") == "");
  CHECK(matcher.push("E") == "EN");
  CHECK(matcher.push("N\n") == "EN");
  CHECK(matcher.push("x\n") == "\nx");
  CHECK_FALSE(matcher.match());
  CHECK(matcher.push("\nrest") == "");
  REQUIRE(matcher.match());
  CHECK(matcher.match()->stop == 0);
  CHECK(matcher.match()->begin == 12);
  CHECK(matcher.match()->end == 14);
  CHECK(matcher.push("more") == "");
  CHECK(matcher.finish() == "");
}

TEST_CASE("what was held back comes at the end if no stop does") {
  StopMatcher matcher = make({"stop here"});
  CHECK(matcher.push("please stop") == "please ");
  CHECK(matcher.finish() == "stop");
}

TEST_CASE("the stop itself goes out when asked for, nothing behind it ever") {
  StopMatcher matcher = make({"ab"}, true);
  CHECK(matcher.push("xa") == "x");
  CHECK(matcher.push("bc") == "ab");
  CHECK(matcher.finish() == "");
}

TEST_CASE("the first to end wins, then the first in the list") {
  StopMatcher longer = make({"abcd", "bc"});
  CHECK(longer.push("xabcd") == "xa");
  CHECK(longer.match()->stop == 1);
  StopMatcher same_end = make({"bc", "abc"});
  CHECK(same_end.push("xabc") == "xa");
  CHECK(same_end.match()->stop == 0);
}

TEST_CASE("without stops everything goes through") {
  StopMatcher matcher = make({});
  CHECK(matcher.push("anything") == "anything");
  CHECK(matcher.finish() == "");
}

TEST_CASE("too many, too long, empty or broken stops are refused") {
  const auto error = [](const Stops& stops) {
    return std::string(StopMatcher::create(stops, false).status().message());
  };
  CHECK(StopMatcher::create(Stops(kStopsMax, std::string(kStopBytesMax, 'x')), false).ok());
  CHECK_THAT(error(Stops(kStopsMax + 1, "x")), Catch::Contains("65 stop strings, at most 64"));
  CHECK_THAT(error({"x", std::string(kStopBytesMax + 1, 'x')}),
             Catch::Contains("stop string 1 has 257 bytes, at most 256"));
  CHECK_THAT(error({""}), Catch::Contains("stop string 0 is empty"));
  CHECK_THAT(error({"\xC3"}), Catch::Contains("not UTF-8"));
}

TEST_CASE("every way to cut a text gives what a search of the whole finds") {
  const unsigned seed = 99;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto letters = [&](size_t count, unsigned kinds) {
    std::string text(count, 'a');
    for (char& letter : text) letter = static_cast<char>('a' + random() % kinds);
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    const unsigned kinds = 1 + random() % 3;  // Few letters: stops overlap themselves and others.
    Stops stops(1 + random() % 4);
    for (std::string& stop : stops) stop = letters(1 + random() % 6, kinds);
    const std::string text = letters(random() % 40, kinds + random() % 2);
    const bool include_stop = random() % 2 == 0;
    StopMatcher matcher = make(stops, include_stop);
    std::string out;
    for (size_t begin = 0; begin < text.size();) {
      const size_t bytes = 1 + random() % 5;
      out += matcher.push(std::string_view(text).substr(begin, bytes));
      begin += bytes;
    }
    out += matcher.finish();
    const auto expected = search_stops(text, stops);
    INFO("round " << round << ", text " << text);
    REQUIRE(matcher.match().has_value() == expected.has_value());
    if (!expected) {
      REQUIRE(out == text);
      continue;
    }
    REQUIRE(matcher.match()->stop == expected->stop);
    REQUIRE(matcher.match()->begin == expected->begin);
    REQUIRE(out == text.substr(0, include_stop ? expected->end : expected->begin));
  }
}

TEST_CASE("text in whole characters goes out in whole characters") {
  StopMatcher matcher = make({"\xC3\xA9!", "\xF0\x9F\x98\x80"});
  for (const char* part : {"\xC3\xA9", "\xC3\xA8", "\xF0\x9F\x98\x81", "\xC3\xA9", "?"}) {
    CHECK(is_valid_utf8(matcher.push(part)));
  }
  CHECK_FALSE(matcher.match());
}

}  // namespace
}  // namespace spillway::stop_matcher_test
