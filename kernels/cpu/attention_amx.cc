#include "kernels/cpu/attention_amx.h"

#include "kernels/base/check.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/amx.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")

namespace spillway::cpu {

namespace {

constexpr int64_t kTileNumbers = kAmxRows * kPairDepth;  // Of a tile in bf16
constexpr int64_t kTileWords = kTileNumbers / 2;
constexpr int64_t kKeyStrips = kTileKeys / kAmxRows, kKeySteps = kTileKeys / kPairDepth;
static_assert(kTileLine == kAmxRows);

#define SPILLWAY_TRANSPOSE_BODIES
#include "kernels/cpu/transpose_inl.h"
#undef SPILLWAY_TRANSPOSE_BODIES

// Two rows of 16 numbers, rounded to nearest even, side by side: a[i] below b[i].
inline __m512i round_pairs(__m512 a, __m512 b) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

// What the first part of two rows leaves.
inline __m512i rest_of_pairs(__m512 a, __m512 b, __m512i pairs) {
  const __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  const __m512 high = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
  return round_pairs(_mm512_sub_ps(a, low), _mm512_sub_ps(b, high));
}

inline __m512 widened(__m256i half) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// Rows of 16 numbers that lie one after another: strips of keys, or lines of values.
inline __m512 row_of(const float* line, int64_t row) {
  return _mm512_loadu_ps(line + row * kTileLine);
}

// (Of g++ 12, the attributes above do not reach constructors.)
void set_up() {
  _tile_loadconfig(&kWholeTiles);
}
void release() {
  _tile_release();
}

}  // namespace

TilesInUse::TilesInUse() {
  set_up();
}

TilesInUse::~TilesInUse() {
  release();
}

void pack_row_pairs(const float* from, int64_t stride, int64_t rows, int parts, int64_t part_words,
                    uint32_t* to) {
  for (int64_t row = 0; row < rows; row += 2, from += 2 * stride, to += kAmxRows) {
    const __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + stride);
    const __m512i pairs = round_pairs(a, b);
    _mm512_storeu_si512(to, pairs);
    if (parts == 2) _mm512_storeu_si512(to + part_words, rest_of_pairs(a, b, pairs));
  }
}

void pack_query_tiles(const float* blocks, int64_t rows, int64_t head_size, FactorParts parts,
                      uint32_t* tiles) {
  const int64_t depth = key_depth(head_size), words = query_tile_words(head_size, parts);
  for (int64_t row = 0; row < rows; row += kAmxRows, tiles += words) {
    const float* const from = blocks + row / kTileBlock * kTileBlock * depth + row % kTileBlock;
    if (depth < tile_depth(head_size)) std::fill_n(tiles, words, 0u);
    pack_row_pairs(from, kTileBlock, depth, parts.rows, words / parts.rows, tiles);
  }
}

void pack_key_tiles(const float* lines, int64_t head_size, int parts, uint16_t* to) {
  const int64_t lines_there = key_depth(head_size) / kTileLine;
  const int64_t steps = tile_depth(head_size) / kPairDepth;
  const int64_t part = kTileKeys * steps * kPairDepth;
  for (int64_t key = 0; key < kTileKeys; ++key) {
    uint16_t* row = to + key / kAmxRows * steps * kTileNumbers + key % kAmxRows * kPairDepth;
    for (int64_t step = 0; step < steps; ++step, row += kTileNumbers) {
      const float* const line = lines + 2 * step * kTileKeys * kTileLine;
      const bool both = 2 * step + 1 < lines_there;
      const __m512 low = row_of(line, key);
      const __m512 high = both ? row_of(line + kTileKeys * kTileLine, key) : _mm512_setzero_ps();
      const auto rounded = (__m512i)_mm512_cvtne2ps_pbh(high, low);
      _mm512_storeu_si512(row, rounded);
      if (parts == 1) continue;
      const __m512 low_rest = _mm512_sub_ps(low, widened(_mm512_castsi512_si256(rounded)));
      const __m512 high_rest = _mm512_sub_ps(high, widened(_mm512_extracti64x4_epi64(rounded, 1)));
      _mm512_storeu_si512(row + part, (__m512i)_mm512_cvtne2ps_pbh(high_rest, low_rest));
    }
  }
}

void pack_value_tiles(const float* lines, int64_t head_size, int parts, uint16_t* to) {
  const int64_t strips = key_depth(head_size) / kTileLine;
  const int64_t part = strips * kKeySteps * kTileNumbers;
  for (int64_t strip = 0; strip < strips; ++strip) {
    const float* const line = lines + strip * kTileKeys * kTileLine;
    for (int64_t step = 0; step < kKeySteps; ++step, to += kTileNumbers) {
      __m512i first[16], second[16];
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t key = step * kPairDepth + 2 * i;
        const __m512 a = row_of(line, key), b = row_of(line, key + 1);
        first[i] = round_pairs(a, b);
        second[i] = parts == 2 ? rest_of_pairs(a, b, first[i]) : _mm512_setzero_si512();
      }
      transpose(first);
      for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * kPairDepth, first[i]);
      if (parts == 1) continue;
      transpose(second);
      for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(to + part + i * kPairDepth, second[i]);
    }
  }
}

namespace {

// Factors of a product of up to four strips of 16 rows with 16 columns.
struct Factors {
  const uint16_t* strips;  // Tiles of a strip one after another
  int64_t strip;           // Numbers from a strip to the next
  int64_t strips_part;     // Numbers from its first part to its second
  const uint32_t* columns;
  int64_t columns_part;  // Words
  int64_t steps;         // Tiles of 32 inputs
};

// Sum kSum += the product of tiles `a` and `b`. (The intrinsics take numbers by name.)
template <int kSum, int kA, int kB>
inline void add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

template <int kSum, int kRowParts, int kCachedParts>
inline void add_strip(const uint16_t* strip, int64_t rest) {
  _tile_loadd(6, strip, kAmxRowBytes);
  add_product<kSum, 6, 4>();
  if constexpr (kRowParts == 2) add_product<kSum, 6, 5>();
  if constexpr (kCachedParts == 2) {
    _tile_loadd(7, strip + rest, kAmxRowBytes);
    add_product<kSum, 7, 4>();
  }
}

// sums[16 * strips][16] = (or += with kAdds) their products, `stride` floats from row to row.
template <bool kAdds, int kStrips, int kRowParts, int kCachedParts>
void multiply_strips(const Factors& of, int64_t stride, float* sums) {
  const int64_t bytes = stride * static_cast<int64_t>(sizeof(float)), below = kAmxRows * stride;
  // g++ 12 does not know that loads of tiles read memory.
  asm volatile("" ::: "memory");
  if constexpr (kAdds) {
    _tile_loadd(0, sums, bytes);
    if constexpr (kStrips > 1) _tile_loadd(1, sums + below, bytes);
    if constexpr (kStrips > 2) _tile_loadd(2, sums + 2 * below, bytes);
    if constexpr (kStrips > 3) _tile_loadd(3, sums + 3 * below, bytes);
  } else {
    _tile_zero(0);
    if constexpr (kStrips > 1) _tile_zero(1);
    if constexpr (kStrips > 2) _tile_zero(2);
    if constexpr (kStrips > 3) _tile_zero(3);
  }
  const uint16_t* strip = of.strips;
  const uint32_t* columns = of.columns;
  for (int64_t step = 0; step < of.steps; ++step, strip += kTileNumbers, columns += kTileWords) {
    _tile_loadd(4, columns, kAmxRowBytes);
    if constexpr (kRowParts == 2) _tile_loadd(5, columns + of.columns_part, kAmxRowBytes);
    add_strip<0, kRowParts, kCachedParts>(strip, of.strips_part);
    if constexpr (kStrips > 1) {
      add_strip<1, kRowParts, kCachedParts>(strip + of.strip, of.strips_part);
    }
    if constexpr (kStrips > 2) {
      add_strip<2, kRowParts, kCachedParts>(strip + 2 * of.strip, of.strips_part);
    }
    if constexpr (kStrips > 3) {
      add_strip<3, kRowParts, kCachedParts>(strip + 3 * of.strip, of.strips_part);
    }
  }
  _tile_stored(0, sums, bytes);
  if constexpr (kStrips > 1) _tile_stored(1, sums + below, bytes);
  if constexpr (kStrips > 2) _tile_stored(2, sums + 2 * below, bytes);
  if constexpr (kStrips > 3) _tile_stored(3, sums + 3 * below, bytes);
}

template <bool kAdds, int kStrips>
void multiply_parts(const Factors& of, FactorParts parts, int64_t stride, float* sums) {
  if (parts.cached == 2) {
    multiply_strips<kAdds, kStrips, 2, 2>(of, stride, sums);
  } else if (parts.rows == 2) {
    multiply_strips<kAdds, kStrips, 2, 1>(of, stride, sums);
  } else {
    multiply_strips<kAdds, kStrips, 1, 1>(of, stride, sums);
  }
}

template <bool kAdds>
void multiply(Factors of, int64_t strips, FactorParts parts, int64_t stride, float* sums) {
  for (; strips > 0; strips -= 4) {
    if (strips >= 4) {
      multiply_parts<kAdds, 4>(of, parts, stride, sums);
    } else if (strips == 3) {
      multiply_parts<kAdds, 3>(of, parts, stride, sums);
    } else if (strips == 2) {
      multiply_parts<kAdds, 2>(of, parts, stride, sums);
    } else {
      multiply_parts<kAdds, 1>(of, parts, stride, sums);
    }
    of.strips += 4 * of.strip;
    sums += 4 * kAmxRows * stride;
  }
}

}  // namespace

void tile_scores(const uint16_t* keys, const uint32_t* queries, FactorParts parts,
                 int64_t head_size, int64_t from, int64_t to, int64_t stride, float* scores) {
  const int64_t steps = tile_depth(head_size) / kPairDepth, strip = steps * kTileNumbers;
  const int64_t first = from / kAmxRows;
  multiply<false>(
      {keys + first * strip, strip, kKeyStrips * strip, queries, steps * kTileWords, steps},
      to / kAmxRows - first, parts, stride, scores + from * stride);
}

void tile_outputs(const uint16_t* values, const uint32_t* weights, FactorParts parts,
                  int64_t head_size, int64_t from, int64_t to, int64_t stride, float* out) {
  const int64_t strips = key_depth(head_size) / kTileLine, strip = kKeySteps * kTileNumbers;
  const int64_t first = from / kPairDepth;
  multiply<true>({values + first * kTileNumbers, strip, strips * strip,
                  weights + first * kTileWords, kKeySteps * kTileWords, to / kPairDepth - first},
                 strips, parts, stride, out);
}

}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES

#else

namespace spillway::cpu {

TilesInUse::TilesInUse() {
  SPILLWAY_CHECK(false);
}
TilesInUse::~TilesInUse() = default;
void pack_row_pairs(const float*, int64_t, int64_t, int, int64_t, uint32_t*) {
  SPILLWAY_CHECK(false);
}
void pack_query_tiles(const float*, int64_t, int64_t, FactorParts, uint32_t*) {
  SPILLWAY_CHECK(false);
}
void pack_key_tiles(const float*, int64_t, int, uint16_t*) {
  SPILLWAY_CHECK(false);
}
void pack_value_tiles(const float*, int64_t, int, uint16_t*) {
  SPILLWAY_CHECK(false);
}
void tile_scores(const uint16_t*, const uint32_t*, FactorParts, int64_t, int64_t, int64_t, int64_t,
                 float*) {
  SPILLWAY_CHECK(false);
}
void tile_outputs(const uint16_t*, const uint32_t*, FactorParts, int64_t, int64_t, int64_t, int64_t,
                  float*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
