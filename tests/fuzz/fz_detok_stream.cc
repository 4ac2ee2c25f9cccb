// Any ids in a stream: text that is valid at every moment and, put together, decode() of all.
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "server/tokenizer/detokenizer.h"
#include "server/tokenizer/utf8.h"
#include "tests/server/tokenizer/small_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  // Besides single bytes: a piece that ends within a character, and one that begins there.
  static const Tokenizer tokenizer = load_small({"a \xC3\xB0", "\xC5\x81 b", "\xC3\xB0 \xC5\x81"});
  if (size == 0) return 0;
  const bool skip_special = data[0] % 2 == 0;
  std::vector<int32_t> ids;
  for (size_t i = 1; i < size; ++i) {
    // 0xC0 and 0xC1 are no part of UTF-8: they stand for what is no byte.
    if (data[i] == 0xC0) {
      ids.push_back(0);
    } else if (data[i] == 0xC1) {
      ids.push_back(257 + static_cast<int32_t>(i % 5));  // The merged pieces, and no piece
    } else {
      ids.push_back(data[i] + 1);
    }
  }
  Detokenizer stream(&tokenizer, skip_special);
  std::string text;
  for (int32_t id : ids) {
    const std::string part = stream.push(id);
    SPILLWAY_CHECK(is_valid_utf8(part));
    text += part;
  }
  text += stream.finish();
  SPILLWAY_CHECK(is_valid_utf8(text));
  SPILLWAY_CHECK(text == tokenizer.decode(ids, skip_special));
  return 0;
}
