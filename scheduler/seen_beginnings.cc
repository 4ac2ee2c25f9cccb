#include "scheduler/seen_beginnings.h"

#include <xxhash.h>

#include <utility>

#include "kernels/kv_layout.h"

namespace spillway {

namespace {

constexpr size_t kBlocksMax = 32768;  // In each half

}  // namespace

int64_t SeenBeginnings::note(uint64_t salt, std::span<const int32_t> prompt, int64_t blocks) {
  int64_t seen = 0;
  uint64_t hash = salt;  // Of all tokens up to a block's end
  for (int64_t block = 0; block < blocks; ++block) {
    const auto tokens = prompt.subspan(static_cast<size_t>(block * kKvBlockRows), kKvBlockRows);
    hash = XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), hash);
    if (seen == block && (newer_.contains(hash) || older_.contains(hash))) ++seen;
    newer_.insert(hash);
  }
  if (newer_.size() > kBlocksMax) {
    older_ = std::exchange(newer_, {});
  }
  return seen;
}

}  // namespace spillway
