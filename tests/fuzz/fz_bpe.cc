// Any text through any merges: what comes back is the text, and the ids are those of the
// definition. Input: a count of merges, two bytes for each, then the text.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "server/tokenizer/bpe_model.h"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/gpt2_pattern.h"
#include "server/tokenizer/utf8.h"
#include "tests/server/tokenizer/references.h"

namespace spillway {
namespace {

struct Vocabulary {
  std::vector<std::string> pieces;
  std::vector<Merge> merges;

  Vocabulary() {
    for (unsigned byte = 0; byte < 256; ++byte) {
      pieces.push_back(symbol_of_byte(static_cast<uint8_t>(byte)));
    }
  }

  // `left` and `right` count from the newest piece, so that merges of merges are likely.
  void add_merge(uint8_t left, uint8_t right) {
    const Merge merge{static_cast<int32_t>(pieces.size()) - 1 - left,
                      static_cast<int32_t>(pieces.size()) - 1 - right, 0};
    for (const Merge& other : merges) {
      if (other.left == merge.left && other.right == merge.right) return;
    }
    std::string text = pieces[static_cast<size_t>(merge.left)];
    text += pieces[static_cast<size_t>(merge.right)];
    if (text.size() > 64) return;
    const auto same = std::find(pieces.begin(), pieces.end(), text);
    merges.push_back({merge.left, merge.right, static_cast<int32_t>(same - pieces.begin())});
    if (same == pieces.end()) pieces.push_back(std::move(text));
  }
};

void check_text(const Vocabulary& vocabulary, const BpeModel& model, const std::string& text) {
  BpeScratch scratch;
  std::vector<int32_t> ids;
  std::vector<int32_t> expected;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = next_piece_end(text, begin);
    SPILLWAY_CHECK(end > begin && end <= text.size());
    const std::string piece = text.substr(begin, end - begin);
    SPILLWAY_CHECK(is_valid_utf8(piece));
    model.encode(piece, &scratch, &ids);
    std::vector<int32_t> bytes;
    for (char byte : piece) bytes.push_back(static_cast<uint8_t>(byte));
    const auto merged = merge_naively(std::move(bytes), vocabulary.merges);
    expected.insert(expected.end(), merged.begin(), merged.end());
    begin = end;
  }
  SPILLWAY_CHECK(ids == expected);
  SPILLWAY_CHECK(scratch.candidates() <= 3 * text.size());
  std::string back;
  for (int32_t id : ids) {
    back += bytes_of_piece(vocabulary.pieces[static_cast<size_t>(id)]).value();
  }
  SPILLWAY_CHECK(back == text);
}

}  // namespace
}  // namespace spillway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  if (size < 1 || size > 1024) return 0;  // The definition takes cubic time.
  const size_t merges = std::min<size_t>(data[0] % 32, (size - 1) / 2);
  Vocabulary vocabulary;
  for (size_t i = 0; i < merges; ++i) vocabulary.add_merge(data[1 + 2 * i], data[2 + 2 * i]);
  const auto model = BpeModel::create(vocabulary.pieces, vocabulary.merges);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_text(vocabulary, model.value(), to_utf8(text.substr(1 + 2 * merges)));
  return 0;
}
