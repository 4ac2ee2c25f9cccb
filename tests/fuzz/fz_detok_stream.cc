// Any ids in a stream: text that is valid at every moment and, put together, decode() of all.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "server/tokenizer/detokenizer.h"
#include "server/tokenizer/utf8.h"
#include "tests/server/tokenizer/small_tokenizer.h"

namespace spillway {
namespace {

// Byte tokens as ids 1 to 256, a piece that is a space and one with a space in front; the space in
// front of a text is taken away.
Tokenizer load_byte_fallback() {
  nlohmann::json vocabulary = {{"</s>", 0}};
  for (unsigned byte = 0; byte < 256; ++byte) {
    char text[7];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    vocabulary[text] = byte + 1;
  }
  for (const char* piece : {"\xE2\x96\x81",
                            "\xE2\x96\x81"
                            "a",
                            "\xC3\xA9"}) {
    vocabulary[piece] = vocabulary.size();
  }
  nlohmann::json file = small_tokenizer_json({});
  file["pre_tokenizer"] = {{"type", "Metaspace"}};
  file["model"] = {{"type", "BPE"},
                   {"vocab", vocabulary},
                   {"merges", nlohmann::json::array()},
                   {"byte_fallback", true}};
  file["decoder"] = {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "Replace"}, {"pattern", {{"String", "\xE2\x96\x81"}}}, {"content", " "}},
        {{"type", "ByteFallback"}},
        {{"type", "Fuse"}},
        {{"type", "Strip"}, {"content", " "}, {"start", 2}, {"stop", 0}}}}};
  return Tokenizer::load(Files{{"tokenizer.json", file.dump()}}, {}).value();
}

}  // namespace
}  // namespace spillway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  // Besides single bytes: a piece that ends within a character, and one that begins there.
  static const Tokenizer byte_level = load_small({"a \xC3\xB0", "\xC5\x81 b", "\xC3\xB0 \xC5\x81"});
  static const Tokenizer byte_fallback = load_byte_fallback();
  if (size == 0) return 0;
  const bool skip_special = data[0] % 2 == 0;
  const Tokenizer& tokenizer = data[0] & 2 ? byte_fallback : byte_level;
  const auto position = data[0] & 4 ? TextPosition::kContinuation : TextPosition::kStart;
  std::vector<int32_t> ids;
  for (size_t i = 1; i < size; ++i) {
    // 0xC0 and 0xC1 are no part of UTF-8: they stand for what is no byte.
    if (data[i] == 0xC0) {
      ids.push_back(0);
    } else if (data[i] == 0xC1) {
      ids.push_back(257 + static_cast<int32_t>(i % 5));  // The other pieces, and no piece
    } else {
      ids.push_back(data[i] + 1);
    }
  }
  Detokenizer stream(&tokenizer, skip_special, position);
  std::string text;
  for (int32_t id : ids) {
    const std::string part = stream.push(id);
    SPILLWAY_CHECK(is_valid_utf8(part));
    text += part;
  }
  text += stream.finish();
  SPILLWAY_CHECK(is_valid_utf8(text));
  SPILLWAY_CHECK(text == tokenizer.decode(ids, skip_special, position));
  return 0;
}
