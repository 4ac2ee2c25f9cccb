// Keys and values of a prompt in tiles, for attention_tile.h: as the cache's format gives them
// back.
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

// Query rows of a block of the kernels for the widest vectors.
constexpr int64_t kTileBlock = 48;

// Scratch floats of pack_tiles().
constexpr int64_t pack_scratch_floats(int64_t head_size) {
  return 2 * key_depth(head_size);
}

// The key, or the value, of a position below view.keys(), in the cache's format: where it lies in
// the cache or, if it is not there yet, in `memory` of kv_row_bytes.
const std::byte* cache_row(const PromptView& view, bool value, int64_t key, std::byte* memory);

// Packs the keys, or the values, of tiles [first, end) as float32: those of positions after the
// last, and the numbers after a head's last, are zeros.
void pack_tiles(const PromptView& view, bool values, int64_t first, int64_t end, float* scratch,
                float* packed);

}  // namespace spillway::cpu
