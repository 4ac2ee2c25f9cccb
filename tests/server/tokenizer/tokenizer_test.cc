// The tokenizer as its users see it: bos, special tokens, odd text and odd ids.
#include "server/tokenizer/tokenizer.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/tokenizer/small_tokenizer.h"

namespace spillway::tokenizer_test {
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
  CHECK(tokenizer.encode("hi", {}).value() == Ids{0, 257});
  CHECK(tokenizer.encode("hi", kPlain).value() == Ids{257});
  CHECK(tokenizer.encode("", {}).value() == Ids{0});
  CHECK(tokenizer.adds_bos());
  const Tokenizer without = Tokenizer::load(small_files({"h i"}), {}).value();
  CHECK(without.encode("hi", {}).value() == Ids{257});
  CHECK_FALSE(without.adds_bos());
}

TEST_CASE("special tokens written in text stay text unless asked") {
  const Tokenizer tokenizer = load_small({});
  const Ids as_text = {'<' + 1, '/' + 1, 's' + 1, '>' + 1};
  CHECK(tokenizer.encode("</s>", kPlain).value() == as_text);
  CHECK(tokenizer.encode("</s>", kSpecial).value() == Ids{0});
  CHECK(tokenizer.encode("a</s></s>b", kSpecial).value() == Ids{'a' + 1, 0, 0, 'b' + 1});
  CHECK(tokenizer.encode("</s", kSpecial).value() == Ids{'<' + 1, '/' + 1, 's' + 1});
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
  CHECK(tokenizer.encode("foo bar", kPlain).value() == Ids{260});
  CHECK(tokenizer.encode("foo ba", kPlain).value() == Ids{259, ' ' + 1, 'b' + 1, 'a' + 1});
  CHECK(tokenizer.encode("x \xE3\x80\x80<b> \n y", kSpecial).value() == Ids{'x' + 1, 257, 'y' + 1});
  CHECK(tokenizer.encode("x <r>  </s>", kSpecial).value() == Ids{'x' + 1, ' ' + 1, 258, 0});
  CHECK(tokenizer.encode(" <b>", kPlain).value() == Ids{' ' + 1, '<' + 1, 'b' + 1, '>' + 1});
  CHECK(tokenizer.encode("\xC3\xA9\xC3\xA9", kPlain).value() == Ids{261});
  CHECK(tokenizer.decode(Ids{261}, true) == "\xC3\xA9\xC3\xA9");  // Not in the byte alphabet.
  CHECK_FALSE(tokenizer.is_special(259));
  CHECK(tokenizer.is_special(257));
}

TEST_CASE("ill-formed UTF-8 is encoded as U+FFFD") {
  const Tokenizer tokenizer = load_small({});
  const Ids replacement = {0xEF + 1, 0xBF + 1, 0xBD + 1};
  CHECK(tokenizer.encode("\xFF", kPlain).value() == replacement);
  CHECK(tokenizer.encode("\xE4\xB8", kPlain).value() == replacement);
  CHECK(tokenizer.encode("\xEF\xBF\xBD", kPlain).value() == replacement);
  CHECK(tokenizer.decode(tokenizer.encode("a\x80z", kPlain).value(), true) == "a\xEF\xBF\xBDz");
  const std::string zero(3, '\0');
  CHECK(tokenizer.encode(zero, kPlain).value() == Ids{1, 1, 1});
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
  CHECK(tokenizer.encode("</s>", kSpecial).value() == Ids{0});

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
  CHECK(load(file).encode("hi", {}).value() == Ids{0, 257});
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}}, {{"type", "TemplateProcessing"}, {"single", {text}}}}}};
  TokenizerDefaults defaults;
  defaults.bos = 0;
  CHECK_FALSE(load(file, defaults).adds_bos());
}

// SentencePiece's kind: byte tokens, "\u2581" for a space, one in front of a text.
nlohmann::json llama_json() {
  nlohmann::json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (unsigned byte = 0; byte < 256; ++byte) {
    char text[7];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    vocabulary[text] = byte + 3;
  }
  const std::string mark = "\xE2\x96\x81";
  for (const std::string& piece :
       {mark, std::string("h"), std::string("i"), std::string("hi"), mark + "hi"}) {
    vocabulary[piece] = vocabulary.size();
  }
  nlohmann::json file = small_tokenizer_json({});
  file["added_tokens"] = {added("<unk>", 0, true, false, false),
                          added("<s>", 1, true, false, false),
                          added("</s>", 2, true, false, false)};
  file["pre_tokenizer"] = nullptr;
  file["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Prepend"}, {"prepend", mark}},
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}}}}};
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  file["model"] = {{"type", "BPE"},        {"vocab", vocabulary},
                   {"unk_token", "<unk>"}, {"byte_fallback", true},
                   {"fuse_unk", true},     {"merges", {"h i", mark + " hi"}}};
  return file;
}

TEST_CASE("a space in front of a text comes and goes, but not where tokens continue a prompt") {
  const Tokenizer tokenizer = load(llama_json());
  const Ids ids = tokenizer.encode("hi hi", kPlain).value();
  CHECK(ids == Ids{263, 263});
  CHECK(tokenizer.decode(ids, true) == "hi hi");
  CHECK(tokenizer.decode(ids, true, TextPosition::kContinuation) == " hi hi");
  CHECK(tokenizer.token_bytes(263) == " hi");
  CHECK(tokenizer.encode("\xC3\xA9\n", kPlain).value() == Ids{259, 3 + 0xC3, 3 + 0xA9, 3 + '\n'});
  CHECK(tokenizer.encode("", kPlain).value().empty());
  // Each text between added tokens has the space in front; a bos that is shown keeps it.
  const Ids after = tokenizer.encode("<s>hi", kSpecial).value();
  CHECK(after == Ids{1, 263});
  CHECK(tokenizer.decode(after, true) == "hi");
  CHECK(tokenizer.decode(after, false) == "<s> hi");
}

TEST_CASE("what transformers' classes put around a text") {
  const auto around = [](const std::string& config, nlohmann::json file) {
    const Files files = {{"tokenizer.json", file.dump()}, {"tokenizer_config.json", config}};
    return Tokenizer::load(files, {}).value().encode("hi", {}).value();
  };
  const std::string tokens = R"("bos_token": "<s>", "eos_token": "</s>")";
  const std::string llama = R"({"tokenizer_class": "LlamaTokenizerFast", )" + tokens;
  CHECK(around(llama + "}", llama_json()) == Ids{1, 263});
  CHECK(around(llama + R"(, "add_bos_token": false})", llama_json()) == Ids{263});
  CHECK(around(llama + R"(, "add_eos_token": true})", llama_json()) == Ids{1, 263, 2});
  CHECK(around(R"({"tokenizer_class": "GPTNeoXTokenizer", )" + tokens + "}", llama_json()) ==
        Ids{263});
  // Other classes leave it to the file.
  const std::string other = R"({"tokenizer_class": "PreTrainedTokenizerFast", )" + tokens;
  CHECK(around(other + R"(, "add_bos_token": true})", llama_json()) == Ids{263});
  // add_prefix_space of the configuration counts, which is false when it is absent.
  nlohmann::json spaced = small_tokenizer_json({"h i"});
  spaced["pre_tokenizer"]["add_prefix_space"] = true;
  CHECK(around(R"({"add_prefix_space": true})", spaced) == Ids{' ' + 1, 257});
  CHECK(around(R"({"model_max_length": 5})", spaced) == Ids{257});
}

TEST_CASE("a model without a post-processor adds no bos, though it has one") {
  TokenizerDefaults defaults;
  defaults.bos = 0;
  const Tokenizer tokenizer = load(small_tokenizer_json({"h i"}), defaults);
  CHECK(tokenizer.encode("hi", {}).value() == Ids{257});
  CHECK(tokenizer.bos() == 0);
  CHECK_FALSE(tokenizer.adds_bos());
}

TEST_CASE("text that a pattern cannot bear is an error") {
  auto file = small_tokenizer_json({});
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(?:a|aa)+$"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}}}}};
  const Tokenizer tokenizer = load(file);
  CHECK(tokenizer.encode("aab", kPlain).ok());
  CHECK(tokenizer.encode(std::string(1000, 'a') + "!", kPlain).status().code() == Code::kCapacity);
}

TEST_CASE("added tokens outside the vocabulary are not the model's") {
  auto file = small_tokenizer_json({});
  file["added_tokens"].push_back(added("<|x|>", 257, true, false, false));
  file["model"]["ignore_merges"] = true;
  CHECK(load(file).encode("<|x|>", kPlain).value().size() > 1);
  CHECK(load(file).encode("<|x|>", kSpecial).value() == Ids{257});
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
    const Ids ids = from_lines.encode(text, kPlain).value();
    CHECK(from_json.encode(text, kPlain).value() == ids);
    CHECK(from_pairs.encode(text, kPlain).value() == ids);
  }
  CHECK(from_lines.encode("hello", kPlain).value() == Ids{259, 'o' + 1});
}

TEST_CASE("many threads may encode and decode at once") {
  const Tokenizer tokenizer = load_small({"h e", "l l", "he ll"});
  const std::string text = "hello hello </s> \xC3\xA9";
  const Ids expected = tokenizer.encode(text, {}).value();
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const Ids ids = tokenizer.encode(text, {}).value();
        if (ids != expected || tokenizer.decode(ids, true) != text) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>{0, 0, 0, 0});
}

}  // namespace
}  // namespace spillway::tokenizer_test
