// Both products of a prompt's attention (attention_tile.h) over an 8-bit cache, in 16-bit integers
// by AVX-512 VNNI: an instruction multiplies and adds 32 pairs of them, twice as many as of
// float32. Keys and values are the cache's codes. A query is rounded to 16 bits beside its largest
// number, and a row's softmax weights, times the scales of the values, to 16 bits beside the
// largest of them in a tile; so each is off by at most 2^-16 of that, where the cache is off by
// 2^-8. (A decode step does much the same, attention_codes.h.) A tile's sums are exact.
//
//   q . k = step of the query * scale of the key * sum(n code)
//   sum of w v over a tile = step of the row * sum(n code), n * step = w * scale of the value
//
// A word is a pair of neighbouring 16-bit integers: of a query or a key two numbers of the head,
// of values and weights those of two keys. NaN and infinities in a query, a weight or a scale
// become NaN, in the rows that see them.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/attention_pack.h"

namespace spillway::cpu {

// Whole lines of words, and sums below 2^31.
constexpr bool words_head_size(int64_t head_size) {
  return head_size % (2 * kTileLine) == 0 && head_size <= 256;
}

// Words of a tile of keys, [head_size / 32][64][16], or of values, [head_size / 16][64 / 2][16];
// the scales of its keys, as float32, stand behind them.
constexpr int64_t tile_words(int64_t head_size) {
  return kTileKeys * head_size / 2;
}
constexpr int64_t word_tile_floats(int64_t head_size) {
  return tile_words(head_size) + kTileKeys;
}

// Packs the keys, or the values, of tiles [first, end) as pack_tiles() (attention_pack.h) does.
void pack_word_tiles(const PromptView& view, bool values, int64_t first, int64_t end,
                     float* scratch, float* packed);

// All that follow REQUIRE has_avx512_vnni() (gemm_int8.h) and words_head_size(head_size). Blocks
// are of 48 query rows, those of a vector 16.

// Packs query rows, in blocks of [head_size][48], as words, blocks of [head_size / 2][48], and the
// steps of up to 96 rows.
void pack_query_words(const float* blocks, int64_t rows, int64_t head_size, int32_t* words,
                      float* steps);

// scores[key][48] of keys [from, to) of a tile, both multiples of 8, and one to three vectors of a
// block.
void word_scores(const float* keys, const int32_t* queries, const float* steps, int64_t head_size,
                 int64_t from, int64_t to, int64_t vectors, float* scores);

// Softmax weights [key][48] of a vector, times the scales of these values, as words,
// [64 / 2][48], and the steps of its rows. `from` and `to` are even.
void pack_weight_words(const float* weights, const float* values, int64_t head_size, int64_t from,
                       int64_t to, int32_t* words, float* steps);

// out[number][48] = itself times factor, null: 1, plus the values times the weights of keys
// [from, to).
void word_outputs(const float* values, const int32_t* weights, const float* steps,
                  const float* factor, int64_t head_size, int64_t from, int64_t to, int64_t vectors,
                  float* out);

}  // namespace spillway::cpu
