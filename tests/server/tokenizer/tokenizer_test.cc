// The tokenizer as its users see it: bos, special tokens, odd text and odd ids.
#include "server/tokenizer/tokenizer.h"

#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/tokenizer/small_tokenizer.h"

namespace spillway {
namespace {

using Ids = std::vector<int32_t>;

constexpr EncodeOptions kPlain = {.add_bos = false, .parse_special = false};
constexpr EncodeOptions kSpecial = {.add_bos = false, .parse_special = true};

Tokenizer load(const nlohmann::json& file, const TokenizerDefaults& defaults = {}) {
  return Tokenizer::load(Files{{"tokenizer.json", file.dump()}}, defaults).value();
}

// An added token for tokenizer.json.
nlohmann::json added(const char* content, int id, bool special, bool lstrip, bool rstrip) {
  return {{"id", id},         {"content", content}, {"special", special},
          {"lstrip", lstrip}, {"rstrip", rstrip},   {"single_word", false}};
}

TEST_CASE("bos comes in front when asked for and known") {
  const Tokenizer tokenizer = load_small({"h i"});
  CHECK(tokenizer.encode("hi", {}) == Ids{0, 257});
  CHECK(tokenizer.encode("hi", kPlain) == Ids{257});
  CHECK(tokenizer.encode("", {}) == Ids{0});
  CHECK(tokenizer.adds_bos());
  const Tokenizer without = Tokenizer::load(small_files({"h i"}), {}).value();
  CHECK(without.encode("hi", {}) == Ids{257});
  CHECK_FALSE(without.adds_bos());
}

TEST_CASE("special tokens written in text stay text unless asked") {
  const Tokenizer tokenizer = load_small({});
  const Ids as_text = {'<' + 1, '/' + 1, 's' + 1, '>' + 1};
  CHECK(tokenizer.encode("</s>", kPlain) == as_text);
  CHECK(tokenizer.encode("</s>", kSpecial) == Ids{0});
  CHECK(tokenizer.encode("a</s></s>b", kSpecial) == Ids{'a' + 1, 0, 0, 'b' + 1});
  CHECK(tokenizer.encode("</s", kSpecial) == Ids{'<' + 1, '/' + 1, 's' + 1});
  CHECK(tokenizer.decode(Ids{'a' + 1, 0, 'b' + 1}, true) == "ab");
  CHECK(tokenizer.decode(Ids{'a' + 1, 0, 'b' + 1}, false) == "a</s>b");
}

TEST_CASE("added tokens: plain ones always match, the longest wins, whitespace as they say") {
  auto file = small_tokenizer_json({});
  for (const auto& token :
       {added("<b>", 257, true, true, true), added("<r>", 258, true, false, true),
        added("foo", 259, false, false, false), added("foo bar", 260, false, false, false),
        added("\xC3\xA9\xC3\xA9", 261, false, false, false)}) {
    file["added_tokens"].push_back(token);
  }
  const Tokenizer tokenizer = load(file);
  CHECK(tokenizer.vocabulary() == 262);
  CHECK(tokenizer.encode("foo bar", kPlain) == Ids{260});
  CHECK(tokenizer.encode("foo ba", kPlain) == Ids{259, ' ' + 1, 'b' + 1, 'a' + 1});
  CHECK(tokenizer.encode("x \xE3\x80\x80<b> \n y", kSpecial) == Ids{'x' + 1, 257, 'y' + 1});
  CHECK(tokenizer.encode("x <r>  </s>", kSpecial) == Ids{'x' + 1, ' ' + 1, 258, 0});
  CHECK(tokenizer.encode(" <b>", kPlain) == Ids{' ' + 1, '<' + 1, 'b' + 1, '>' + 1});
  CHECK(tokenizer.encode("\xC3\xA9\xC3\xA9", kPlain) == Ids{261});
  CHECK(tokenizer.decode(Ids{261}, true) == "\xC3\xA9\xC3\xA9");  // Not in the byte alphabet.
  CHECK_FALSE(tokenizer.is_special(259));
  CHECK(tokenizer.is_special(257));
}

TEST_CASE("ill-formed UTF-8 is encoded as U+FFFD") {
  const Tokenizer tokenizer = load_small({});
  const Ids replacement = {0xEF + 1, 0xBF + 1, 0xBD + 1};
  CHECK(tokenizer.encode("\xFF", kPlain) == replacement);
  CHECK(tokenizer.encode("\xE4\xB8", kPlain) == replacement);
  CHECK(tokenizer.encode("\xEF\xBF\xBD", kPlain) == replacement);
  CHECK(tokenizer.decode(tokenizer.encode("a\x80z", kPlain), true) == "a\xEF\xBF\xBDz");
  const std::string zero(3, '\0');
  CHECK(tokenizer.encode(zero, kPlain) == Ids{1, 1, 1});
  CHECK(tokenizer.decode(Ids{1, 1, 1}, true) == zero);
}

TEST_CASE("ids that stand for nothing give no text") {
  const Tokenizer tokenizer = load_small({});
  CHECK(tokenizer.decode(Ids{-1, 'a' + 1, 257, INT32_MAX, INT32_MIN}, true) == "a");
  CHECK(tokenizer.token_bytes(-1) == "");
  CHECK(tokenizer.token_bytes(0xC3 + 1) == "\xC3");
  CHECK_FALSE(tokenizer.is_special(257));
  CHECK_FALSE(tokenizer.is_special(-1));
}

TEST_CASE("special ids come from the files, then from the model") {
  Files files = small_files({});
  TokenizerDefaults defaults;
  defaults.bos = 5;
  defaults.pad = 6;
  files.emplace_back("special_tokens_map.json",
                     R"({"bos_token": "a", "eos_token": {"content": "</s>", "lstrip": false}})");
  files.emplace_back("tokenizer_config.json", R"({"bos_token": "b", "add_bos_token": false})");
  const Tokenizer tokenizer = Tokenizer::load(files, defaults).value();
  CHECK(tokenizer.bos() == 'b' + 1);
  CHECK(tokenizer.eos() == 0);
  CHECK(tokenizer.pad() == 6);
  CHECK_FALSE(tokenizer.adds_bos());
  CHECK(tokenizer.is_special('b' + 1));
  CHECK(tokenizer.is_special(6));
  CHECK(tokenizer.encode("</s>", kSpecial) == Ids{0});

  defaults.eos = 257;
  const Status status = Tokenizer::load(files, defaults).status();
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("eos token is 257") && Catch::Contains("only 257 ids"));
}

TEST_CASE("tokenizer.json says by its post-processor which bos comes in front") {
  auto file = small_tokenizer_json({"h i"});
  CHECK_FALSE(load(file).adds_bos());
  const nlohmann::json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const nlohmann::json bos = {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}};
  file["post_processor"] = {{"type", "TemplateProcessing"}, {"single", {bos, text}}};
  CHECK(load(file).adds_bos());
  CHECK(load(file).encode("hi", {}) == Ids{0, 257});
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}}, {{"type", "TemplateProcessing"}, {"single", {text}}}}}};
  TokenizerDefaults defaults;
  defaults.bos = 0;
  CHECK_FALSE(load(file, defaults).adds_bos());
}

TEST_CASE("both kinds of files give the same ids, and newer merges too") {
  const std::initializer_list<std::string_view> merges = {"h e", "l l", "he ll", "\xC4\xA0 w"};
  auto file = small_tokenizer_json(merges);
  const Tokenizer from_json = load(file);
  for (auto& merge : file["model"]["merges"]) {
    const auto line = merge.get<std::string>();
    merge = {line.substr(0, line.find(' ')), line.substr(line.find(' ') + 1)};
  }
  const Tokenizer from_pairs = load(file);
  const Tokenizer from_lines = load_small(merges);
  for (const char* text : {"hello world", "hell", "hehellllo", " w wh"}) {
    const Ids ids = from_lines.encode(text, kPlain);
    CHECK(from_json.encode(text, kPlain) == ids);
    CHECK(from_pairs.encode(text, kPlain) == ids);
  }
  CHECK(from_lines.encode("hello", kPlain) == Ids{259, 'o' + 1});
}

TEST_CASE("many threads may encode and decode at once") {
  const Tokenizer tokenizer = load_small({"h e", "l l", "he ll"});
  const std::string text = "hello hello </s> \xC3\xA9";
  const Ids expected = tokenizer.encode(text, {});
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const Ids ids = tokenizer.encode(text, {});
        if (ids != expected || tokenizer.decode(ids, true) != text) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>{0, 0, 0, 0});
}

}  // namespace
}  // namespace spillway
