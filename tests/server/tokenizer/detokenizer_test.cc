// Streaming text: never half a character, and in the end the same as decoding at once.
#include "server/tokenizer/detokenizer.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "server/tokenizer/utf8.h"
#include "tests/server/tokenizer/tokenizer_support.h"

namespace spillway::detokenizer_test {
namespace {

// The token of one byte in the small vocabulary.
int32_t byte_token(char byte) {
  return static_cast<uint8_t>(byte) + 1;
}

TEST_CASE("a character comes with its last byte") {
  const Tokenizer tokenizer = load_small({});
  Detokenizer stream(&tokenizer, true);
  std::vector<std::string> parts;
  for (char byte : std::string("a\xF0\x9F\x98\x80\xC3\xA9")) {
    parts.push_back(stream.push(byte_token(byte)));
  }
  CHECK(parts == std::vector<std::string>{"a", "", "", "", "\xF0\x9F\x98\x80", "", "\xC3\xA9"});
  CHECK(stream.finish() == "");
}

TEST_CASE("bytes that can become no character are U+FFFD at once") {
  const Tokenizer tokenizer = load_small({});
  Detokenizer stream(&tokenizer, true);
  CHECK(stream.push(byte_token('\xFF')) == "\xEF\xBF\xBD");
  CHECK(stream.push(byte_token('\xE4')) == "");
  CHECK(stream.push(byte_token('\xB8')) == "");
  CHECK(stream.push(byte_token('x')) == "\xEF\xBF\xBDx");
  CHECK(stream.push(byte_token('\xE4')) == "");
  CHECK(stream.finish() == "\xEF\xBF\xBD");
  CHECK(stream.finish() == "");
}

TEST_CASE("special tokens give text only when asked for, also within a character") {
  const Tokenizer tokenizer = load_small({});
  const std::vector<int32_t> ids = {0, byte_token('\xC3'), 0, byte_token('\xA9'), 0};
  const auto stream_of = [&](bool skip_special) {
    Detokenizer stream(&tokenizer, skip_special);
    std::string text;
    for (int32_t id : ids) text += stream.push(id);
    return text + stream.finish();
  };
  CHECK(stream_of(true) == "\xC3\xA9");
  CHECK(stream_of(false) == "</s>\xEF\xBF\xBD</s>\xEF\xBF\xBD</s>");
  CHECK(stream_of(true) == tokenizer.decode(ids, true));
  CHECK(stream_of(false) == tokenizer.decode(ids, false));
}

TEST_CASE("any ids in a stream are decode() of all of them, valid at every moment") {
  auto opt = load_opt();
  const Tokenizer tokenizer = opt ? std::move(*opt) : load_small({"\xC3\xB0 \xC5\x81"});
  const unsigned seed = 4711;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto parts = tokenizer.encode("\xC3\xA9\xF0\x9F\x98\x80\xE6\xBC\xA2", {}).value();
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(random() % 30);
    for (int32_t& id : ids) {
      // Now and then an id that stands for nothing, as the padded rows of OPT's head.
      id = static_cast<int32_t>(random() % (tokenizer.vocabulary() + 8)) - 1;
      // Tokens of parts of characters.
      if (random() % 2 == 0) id = parts[random() % parts.size()];
    }
    const bool skip_special = random() % 2 == 0;
    Detokenizer stream(&tokenizer, skip_special);
    std::string text;
    for (int32_t id : ids) {
      const std::string part = stream.push(id);
      REQUIRE(is_valid_utf8(part));
      text += part;
    }
    text += stream.finish();
    REQUIRE(text == tokenizer.decode(ids, skip_special));
  }
}

TEST_CASE("byte tokens stream as characters, and the space in front of a text is taken away once") {
  const std::string folder = test::source_directory() + "/tests/golden/tokenizers/";
  for (const char* name : {"llama2", "mistral", "gemma"}) {
    INFO(name);
    const Files files = {{"tokenizer.json", read_file(folder + name + ".json").value()}};
    const Tokenizer tokenizer = Tokenizer::load(files, {}).value();
    const std::string text = "a \xF0\x9F\xAB\xA0 \xE6\xBC\xA2\xE5\xAD\x97  the end\n";
    const auto ids = tokenizer.encode(text, {.add_bos = false}).value();
    for (const TextPosition position : {TextPosition::kStart, TextPosition::kContinuation}) {
      Detokenizer stream(&tokenizer, true, position);
      for (int round = 0; round < 2; ++round) {  // finish() makes it new.
        std::string streamed;
        for (const int32_t id : ids) {
          const std::string part = stream.push(id);
          REQUIRE(is_valid_utf8(part));
          streamed += part;
        }
        streamed += stream.finish();
        CHECK(streamed == tokenizer.decode(ids, true, position));
        const bool starts = position == TextPosition::kStart || name == std::string("gemma");
        CHECK(streamed == (starts ? "" : " ") + text);
      }
    }
  }
}

}  // namespace
}  // namespace spillway::detokenizer_test
