// The bytes of single tokens, and what is taken away at the start of a text.
#include "server/tokenizer/token_decoder.h"

#include <catch2/catch.hpp>
#include <string>

namespace spillway::token_decoder_test {
namespace {

using Kind = DecoderStep::Kind;

const std::string kMark = "\xE2\x96\x81";

DecoderStep step(Kind kind) {
  DecoderStep made;
  made.kind = kind;
  return made;
}

DecoderStep replace(const std::string& what, const std::string& content) {
  DecoderStep made = step(Kind::kReplace);
  made.pattern = {what, true};
  made.content = content;
  return made;
}

DecoderStep strip(int32_t count) {
  DecoderStep made = step(Kind::kStrip);
  made.content = " ";
  made.start = count;
  return made;
}

std::string bytes(const std::vector<DecoderStep>& steps, const std::string& piece,
                  bool added = false) {
  return TokenDecoder::create(steps).value().bytes_of(piece, added).value();
}

TEST_CASE("a token's bytes by each decoder") {
  CHECK(bytes({step(Kind::kByteLevel)}, "\xC4\xA0\xC3\xA9") == " \xE9");
  CHECK(bytes({step(Kind::kByteLevel)}, "\xC4\xA0", true) == "\xC4\xA0");
  CHECK(bytes({step(Kind::kByteLevel)}, "\xE6\xBC\xA2") == "\xE6\xBC\xA2");
  CHECK(bytes({replace(kMark, " ")}, kMark + "a" + kMark) == " a ");
  CHECK(bytes({step(Kind::kByteFallback)}, "<0xE4>") == "\xE4");
  CHECK(bytes({step(Kind::kByteFallback)}, "<0x0a>") == "\n");
  CHECK(bytes({step(Kind::kByteFallback)}, "<0xG4>") == "<0xG4>");
  CHECK(bytes({strip(1), step(Kind::kFuse)}, "  a") == " a");  // Of every token
  CHECK(bytes({step(Kind::kFuse), strip(1)}, "  a") == "  a");
}

TEST_CASE("Strip behind Fuse and Metaspace take from the start of a text alone") {
  const auto text = [](const std::vector<DecoderStep>& steps, std::vector<std::string> tokens,
                       bool continues = false) {
    const TokenDecoder decoder = TokenDecoder::create(steps).value();
    StartOfText start(decoder.start_rule(), continues);
    std::string out;
    for (const std::string& token : tokens) {
      start.append(decoder.bytes_of(token, token == "a b").value(), token == "a b", &out);
    }
    return out;
  };
  const std::vector<DecoderStep> llama = {replace(kMark, " "), step(Kind::kByteFallback),
                                          step(Kind::kFuse), strip(1)};
  CHECK(text(llama, {kMark + "a", kMark + "b"}) == "a b");
  CHECK(text(llama, {kMark + "a"}, true) == " a");
  CHECK(text(llama, {kMark, kMark + "a"}) == " a");
  CHECK(text(llama, {"a", kMark}) == "a ");
  const std::vector<DecoderStep> twice = {replace(kMark, " "), step(Kind::kFuse), strip(2)};
  CHECK(text(twice, {kMark, kMark + kMark + "a"}) == " a");
  DecoderStep meta = step(Kind::kMetaspace);
  meta.content = kMark;
  CHECK(text({meta}, {kMark + "a", kMark + "b"}) == " a b");
  meta.prepended = true;
  CHECK(text({meta}, {kMark + "a" + kMark, kMark + "b"}) == "a b");
  CHECK(text({meta}, {"a b", kMark + "b"}) == "a b b");  // An added token keeps its own space.
}

TEST_CASE("orders that no single token's text follows from are refused") {
  CHECK_FALSE(TokenDecoder::create({step(Kind::kFuse), replace("a", "b")}).ok());
  CHECK_FALSE(TokenDecoder::create({step(Kind::kByteFallback), replace("a", "b")}).ok());
}

}  // namespace
}  // namespace spillway::token_decoder_test
