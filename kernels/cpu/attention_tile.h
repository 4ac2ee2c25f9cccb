// Tiles of a prompt's attention in float32: query rows by 64 keys. Both products have query rows in
// the lanes of a vector: scores are keys times transposed queries, outputs are transposed values
// times the softmax weights. So the softmax needs no sum or maximum across lanes, weights lie in
// the order in which the second product reads them, keys and values are packed as they come, and
// earlier outputs are rescaled where the second product loads them. Only queries and finished
// outputs are transposed.
//
// Vectors of rows that see no key of a strip of keys are left out of both products. A row's bits do
// not depend on the rows beside it: a key that it does not see has weight 0 where it is not left
// out.
//
// With matrix units both products are those of attention_amx.h; without them, but with AVX-512
// VNNI, those over an 8-bit cache are of attention_int16.h. All else is the same, but that integers
// leave out no vector from the first to the last that sees keys of the tile.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_body.h"

namespace spillway::cpu {

constexpr int64_t kTileQueries = 96;  // Most query rows of a tile

// The query rows of a tile. Blocks are of as many rows as the instruction set's kernels take: three
// vectors.
struct TileQueries {
  int64_t rows = 0;
  int64_t head_size = 0;
  const int32_t* positions = nullptr;  // [96]; those after the last row are as the last
  const float* packed = nullptr;       // pack_queries()
  const uint32_t* tiles = nullptr;     // pack_query_tiles() (attention_amx.h), in its place
  const int32_t* int16 = nullptr;      // pack_query_int16() (attention_int16.h), in its place
  const float* steps = nullptr;        // [96]: of these
  float* maximum = nullptr;            // [96]: the running maxima, of scores times log2(e)
  float* sum = nullptr;                // [96]: those of e^(score - maximum)
};

// A tile of keys and values as pack_tiles() (attention_pack.h) packs them, or for matrix units, or
// as integers.
struct TileKeys {
  const float* keys = nullptr;
  const float* values = nullptr;  // Null, both: only maxima, sums and weights are wanted.
  int64_t first_key = 0;
  int64_t window = 0;
  const uint16_t* key_tiles = nullptr;  // pack_key_tiles(), in place of `keys`
  const uint16_t* value_tiles = nullptr;
  FactorParts parts = {};
  const float* key_int16 = nullptr;  // pack_int16_tiles(), in place of `keys`
  const float* value_int16 = nullptr;
};

// Query rows [first_row, first_row + rows) times the scale and log2(e), [96 / block][key_depth of
// the head][block]; rows of the last vector that are not there are zeros.
void pack_queries(const PromptView& view, int64_t first_row, int64_t rows, float* packed);

// Whether this CPU has what attention by matrix units takes, or in 16-bit integers, and the kernels
// of this file are those of its widest vectors.
bool attends_by_tiles();
bool attends_by_int16();

// Adds a tile of keys to the running maxima, sums and outputs, [96 / block][key_depth][block].
// weights: with `keep`, the e^(score - maximum) of all rows, for add_weights(), [96 /
// block][64][block]; otherwise scratch of as much.
void attend_tile(const TileQueries& queries, const TileKeys& keys, bool keep, float* weights,
                 float* out);

// Divides outputs by their sums and stores them as the rows of view.head.out. scratch:
// [96][key_depth].
void store_tile(const PromptView& view, int64_t first_row, int64_t rows, const float* sum,
                const float* out, float* scratch);

// Adds the softmax weights of rows [first, end) to the scores of their 64 keys, row after row; or,
// with `highest`, keeps the highest. maxima: the running maxima when these weights were computed;
// the queries have the last ones.
void add_weights(const TileQueries& queries, const float* maxima, const float* weights,
                 int64_t first, int64_t end, bool highest, float* scores);

}  // namespace spillway::cpu
