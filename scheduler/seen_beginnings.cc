#include "scheduler/seen_beginnings.h"

#include <xxhash.h>

#include <utility>

#include "kernels/kv_layout.h"

namespace spillway {

namespace {

constexpr size_t kBlocksMax = 32768;  // In each half

// Of all tokens up to a block's end, from that of the block before.
uint64_t hash_of(uint64_t before, std::span<const int32_t> prompt, int64_t block) {
  const auto tokens = prompt.subspan(static_cast<size_t>(block * kKvBlockRows), kKvBlockRows);
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), before);
}

}  // namespace

int64_t SeenBeginnings::seen(const CacheSalt& salt, std::span<const int32_t> prompt,
                             int64_t blocks) const {
  uint64_t hash = XXH3_64bits_withSeed(&salt, sizeof(salt), 0);
  for (int64_t block = 0; block < blocks; ++block) {
    hash = hash_of(hash, prompt, block);
    if (!has(hash)) return block;
  }
  return blocks;
}

void SeenBeginnings::note(const CacheSalt& salt, std::span<const int32_t> prompt, int64_t blocks) {
  uint64_t hash = XXH3_64bits_withSeed(&salt, sizeof(salt), 0);
  for (int64_t block = 0; block < blocks; ++block) {
    hash = hash_of(hash, prompt, block);
    newer_.insert(hash);
  }
  if (newer_.size() > kBlocksMax) older_ = std::exchange(newer_, {});
}

}  // namespace spillway
