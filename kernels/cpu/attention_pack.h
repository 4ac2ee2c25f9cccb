// Keys and values of a prompt as the float32 kernels read them (attention_tile.h): as the cache's
// format gives them back.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_body.h"

namespace spillway::cpu {

constexpr int64_t kTileKeys = 64;  // Keys of a tile; tile t starts at position 64 t.

// Numbers of a row that are packed together: a tile is lines of them, [key_depth / 16][64][16].
constexpr int64_t kTileLine = 16;
constexpr int64_t key_depth(int64_t head_size) {
  return (head_size + kTileLine - 1) / kTileLine * kTileLine;
}

// Scratch floats of the function below.
constexpr int64_t pack_scratch_floats(int64_t head_size) {
  return 2 * key_depth(head_size);
}

// A prompt's key, or its value, in the cache's format: where it lies, or rounded to `memory` of as
// many bytes.
const std::byte* cache_row(const PromptView& view, bool value, int64_t key, std::byte* memory);

// Packs the keys, or the values, of tiles [first, end): those of positions after the last, and the
// numbers after a head's last, are zeros.
void pack_tiles(const PromptView& view, bool values, int64_t first, int64_t end, float* scratch,
                float* packed);

}  // namespace spillway::cpu
