// Keys and values of a prompt as the panel kernels read them (gemm_f32.h): float32, as the cache's
// format gives them back.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_body.h"

namespace spillway::cpu {

constexpr int64_t kTileKeys = 64;  // Keys of a tile; tile t starts at position 64 t.

// Floats of a tile's keys, [64 / 16] panels of [depth][16], and of its values, [width / 16] panels
// of [64][16].
constexpr int64_t key_depth(int64_t head_size) {
  return (head_size + 15) / 16 * 16;
}
constexpr int64_t value_width(int64_t head_size) {
  return (head_size + 63) / 64 * 64;
}

// Scratch floats of the two functions below.
constexpr int64_t pack_scratch_floats(int64_t head_size) {
  return 17 * key_depth(head_size);
}

// Packs the keys (values) of tiles [first, end), those of positions after the last as zeros.
void pack_key_tiles(const PromptView& view, int64_t first, int64_t end, float* scratch,
                    float* packed);
void pack_value_tiles(const PromptView& view, int64_t first, int64_t end, float* scratch,
                      float* packed);

}  // namespace spillway::cpu
