// Both products of a prompt's attention (attention_tile.h) by the matrix units of Intel's server
// CPUs (AMX), whose factors are bf16 and whose sums are float32. As in the float32 kernels, query
// rows lie in the lanes: scores are tiles of keys times tiles of queries, outputs are tiles of
// transposed values times tiles of softmax weights.
//
// A float32 number is a sum of one or two bf16 numbers here, its parts: the number rounded, and
// what that leaves, rounded. One is exact for keys and values of a cache in bf16; two have a
// relative error below 2^-16. The product of two second parts is left out: it is smaller than that
// error. What is packed has its first part, whole, before its second.
//
// REQUIRES of all functions: has_amx_bf16() (amx.h) and has_bf16_dot() (gemm_bf16.h).
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/attention_pack.h"

namespace spillway::cpu {

constexpr int64_t kPairDepth = 32;  // Inputs of a tile: 16 pairs

// Numbers of a key, or of a query, in tiles: the head size rounded up to whole tiles.
constexpr int64_t tile_depth(int64_t head_size) {
  return (head_size + kPairDepth - 1) / kPairDepth * kPairDepth;
}

// While this lives, the thread's matrix units are set up for tile_scores() and tile_outputs().
class TilesInUse {
 public:
  TilesInUse();
  ~TilesInUse();
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

// Packs rows of 16 numbers, `stride` floats apart, as pairs of rows, [part][rows / 2][16 pairs];
// its second part is `part_words` words behind the first. `rows` is a multiple of 2.
void pack_row_pairs(const float* from, int64_t stride, int64_t rows, int parts, int64_t part_words,
                    uint32_t* to);

// Packs query rows, in blocks of [key_depth][48] (attention_tile.h): [rows / 16] times
// [part][tile_depth / 2][16 pairs].
void pack_query_tiles(const float* blocks, int64_t rows, int64_t head_size, FactorParts parts,
                      uint32_t* tiles);
// Words of 16 of these rows.
constexpr int64_t query_tile_words(int64_t head_size, FactorParts parts) {
  return parts.rows * tile_depth(head_size) / 2 * 16;
}

// Packs a tile of keys in lines (attention_pack.h): [part][64 / 16][tile_depth / 32][16][32].
void pack_key_tiles(const float* lines, int64_t head_size, int parts, uint16_t* to);
// Packs a tile of values in lines, transposed: [part][key_depth / 16][64 / 32][16][32].
void pack_value_tiles(const float* lines, int64_t head_size, int parts, uint16_t* to);

// scores[key][query], `stride` floats from key to key: keys [from, to) of a tile of 64, both
// multiples of 16, times 16 queries: [part][tile_depth / 2][16 pairs].
void tile_scores(const uint16_t* keys, const uint32_t* queries, FactorParts parts,
                 int64_t head_size, int64_t from, int64_t to, int64_t stride, float* scores);

// out[number][query] += values times the weights of keys [from, to), both multiples of 32, of 16
// queries: [part][32][16 pairs].
void tile_outputs(const uint16_t* values, const uint32_t* weights, FactorParts parts,
                  int64_t head_size, int64_t from, int64_t to, int64_t stride, float* out);

}  // namespace spillway::cpu
