// Both products of a prompt's attention (attention_tile.h) over an 8-bit cache, in 16-bit integers
// by AVX-512 VNNI: VPDPWSSD multiplies and adds 32 pairs of them, twice as many as a multiply-add
// of float32. Keys and values are the cache's codes. A query is rounded to 16 bits beside its
// largest number, and a row's softmax weights, times the scales of the values, to 16 bits beside
// the largest of them in a tile: each is off by at most half of 1/32700 of that, where the cache is
// off by half of 1/127. (A decode step does much the same, attention_codes.h.) A tile's sums are
// exact.
//
//   q . k = step of the query * scale of the key * sum(n code)
//   sum of w v over a tile = step of the row * sum(n code), n * step = w * scale of the value
//
// Integers lie in pairs, the two of a 32-bit lane: of a query or a key, neighbouring numbers of the
// head; of values and weights, those of neighbouring keys. NaN and infinities in a query, a key, a
// weight or a value become NaN in the rows that see them, but for a value whose weight is 0.
//
// REQUIRES of all functions: has_avx512_vnni() (gemm_int8.h), int16_head_size(head_size), and a
// cache in kQ8. Keys are counted from the tile's first. Blocks are of kTileBlock query rows,
// vectors of 16 of these; pointers into a block are those of the first vector that takes part.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/attention_pack.h"

namespace spillway::cpu {

// Whole lines of pairs, and sums below 2^31.
constexpr bool int16_head_size(int64_t head_size) {
  return head_size % (2 * kTileLine) == 0 && head_size <= 256;
}

// Pairs of a tile of keys, [head_size / 32][64][16], or of values, [head_size / 16][64 / 2][16];
// and the floats of the tile, in which the scales of its 64 keys stand behind them.
constexpr int64_t int16_tile_pairs(int64_t head_size) {
  return kTileKeys * head_size / 2;
}
constexpr int64_t int16_tile_floats(int64_t head_size) {
  return int16_tile_pairs(head_size) + kTileKeys;
}

// Packs the keys, or the values, of tiles [first, end) of a prompt, int16_tile_floats() each; those
// of positions after the last are zeros. scratch: of pack_scratch_floats() (attention_pack.h).
void pack_int16_tiles(const PromptView& view, bool values, int64_t first, int64_t end,
                      float* scratch, float* packed);

// Packs query rows, in blocks of [head_size][48], as pairs, blocks of [head_size / 2][48], and the
// steps of the rows, [96]. Of the last vector, all rows are there.
void pack_query_int16(const float* blocks, int64_t rows, int64_t head_size, int32_t* pairs,
                      float* steps);

// scores[key][48] of keys [from, to) of a tile, both multiples of 8, and one to three vectors of a
// block.
void int16_scores(const float* keys, const int32_t* queries, const float* steps, int64_t head_size,
                  int64_t from, int64_t to, int64_t vectors, float* scores);

// Packs the softmax weights [key][48] of a vector, 0 for keys that a row does not see, times the
// scales of these values, as pairs, [64 / 2][48], and the steps of its rows. `from` and `to` are
// even.
void pack_weight_int16(const float* weights, const float* values, int64_t head_size, int64_t from,
                       int64_t to, int32_t* pairs, float* steps);

// out[number][48] = itself times factor, null: 1, plus the values times the weights of keys
// [from, to).
void int16_outputs(const float* values, const int32_t* weights, const float* steps,
                   const float* factor, int64_t head_size, int64_t from, int64_t to,
                   int64_t vectors, float* out);

}  // namespace spillway::cpu
