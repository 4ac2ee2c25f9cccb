// Tiles of a prompt's attention as the kernels of gemm_bf16.h read them: queries and softmax
// weights as strips of rows, keys and values as panels, all in pairs of bf16. Keys and values of a
// cache in bf16 are as they lie there; queries and softmax weights are rounded to nearest even. For
// CPUs where products of bf16 pairs beat float32: bf16_dot_is_fastest().
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_body.h"

namespace spillway::cpu {

// 32-bit words of a row of keys: pairs of the head, padded as weights are.
int64_t key_pairs(int64_t head_size);
// Numbers of a row of values: whole tiles of the kernels.
constexpr int64_t value_width(int64_t head_size) {
  return (head_size + 63) / 64 * 64;
}

// Scratch floats of the two functions that pack keys and values.
constexpr int64_t pair_scratch_floats(int64_t head_size) {
  return 8 * head_size;
}

// Packs the keys of tiles [first, end) of kTileKeys (attention_pack.h), of each [64 / 16] panels of
// [key_pairs][16]; those of positions after the last as zeros. The cache's format is bf16.
// REQUIRES: has_bf16_dot(), as all functions below.
void pack_key_pairs(const PromptView& view, int64_t first, int64_t end, float* scratch,
                    uint32_t* packed);
// The values of the same tiles, of each [width / 16] panels of [32 pairs of keys][16], `width` the
// head's size rounded up to 64.
void pack_value_pairs(const PromptView& view, int64_t first, int64_t end, float* scratch,
                      uint32_t* packed);

// Softmax of rows [first, end) of a tile of scores, [row][64]: exp(score - maximum), zero for keys
// that a row may not see, to `rounded`, [row][64], and with `keep` unrounded over the scores.
// Updates the running maxima and sums, whose last rows may be beyond `end`: both have whole vectors
// of numbers. factor[i] rescales row i's earlier sums. The relative error of
// e^x is below 2e-7 - x / 1e7.
void softmax_pairs(const TileRows& tile, size_t first, size_t end, bool keep, float* scores,
                   uint16_t* rounded, float* maximum, float* sum, float* factor);

// Packs `rows` rows of bf16, `stride` numbers apart, as Strips(rows, kBf16StripRows).
void pack_rounded_strips(const uint16_t* from, int64_t stride, int64_t rows, int64_t columns,
                         uint32_t* strips);

// Rounds `rows` rows of float32, `stride` floats apart, and packs them as Strips(rows,
// kBf16StripRows). `columns` is at most 1,024.
void pack_pair_strips(const float* from, int64_t stride, int64_t rows, int64_t columns,
                      uint32_t* strips);

}  // namespace spillway::cpu
