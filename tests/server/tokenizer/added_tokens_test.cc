// Which added tokens are found where.
#include "server/tokenizer/added_tokens.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>

namespace spillway::added_tokens_test {
namespace {

// As text: ids of tokens as numbers, text as it is, with | between.
std::string parts(const AddedTokenFinder& finder, const std::string& text, bool special) {
  std::string shown;
  for (const auto& part : finder.split(text, special)) {
    if (!shown.empty()) shown += "|";
    shown +=
        part.id >= 0 ? std::to_string(part.id) : text.substr(part.begin, part.end - part.begin);
  }
  return shown;
}

AddedTokenFinder::Entry entry(int32_t id, const std::string& text, bool special) {
  AddedToken token;
  token.id = id;
  token.text = text;
  token.special = special;
  return {text, token};
}

TEST_CASE("of tokens that begin leftmost the longest is found") {
  const AddedTokenFinder finder({entry(1, "ab", false), entry(2, "abcd", false),
                                 entry(3, "bcx", false), entry(4, "b", false)});
  CHECK(parts(finder, "abcd", false) == "2");
  CHECK(parts(finder, "abcx", false) == "1|cx");
  CHECK(parts(finder, "bcxb", false) == "3|4");
  CHECK(parts(finder, "xyz", false) == "xyz");
  CHECK(parts(finder, "", false) == "");
}

TEST_CASE("a special token that is text covers what is in it") {
  const AddedTokenFinder finder({entry(1, "<s>", true), entry(2, "s", false)});
  CHECK(parts(finder, "<s>s", true) == "1|2");
  CHECK(parts(finder, "<s>s", false) == "<s>|2");
  const AddedTokenFinder special({entry(1, "<s>", true)});
  CHECK(parts(special, "a<s>", false) == "a<s>");
}

TEST_CASE("whitespace beside tokens, and whole words") {
  auto both = entry(1, "<b>", true);
  both.token.strip_left = both.token.strip_right = true;
  auto word = entry(2, "the", false);
  word.token.single_word = true;
  const AddedTokenFinder finder({both, word});
  CHECK(parts(finder, "x \xE3\x80\x80<b>\n<b> y", true) == "x|1|1|y");
  CHECK(parts(finder, "the other the,the_ th\xC3\xA9the", true) ==
        "2| other |2|,the_ th\xC3\xA9the");
  CHECK(parts(finder, "the", true) == "2");
}

TEST_CASE("many tokens with a long beginning in common take no time") {
  std::vector<AddedTokenFinder::Entry> entries;
  for (int32_t id = 0; id < 4096; ++id) {
    entries.push_back(entry(id, "<|reserved_special_token_" + std::to_string(id) + "|>", true));
  }
  const AddedTokenFinder finder(std::move(entries));
  std::string text;
  while (text.size() < 1'000'000) text += "<|reserved_special_token_";
  CHECK(finder.split(text, true).size() == 1);
  CHECK(parts(finder, "<|reserved_special_token_17|>", true) == "17");
}

}  // namespace
}  // namespace spillway::added_tokens_test
