#include "kernels/cpu/attention_int16.h"

#include "kernels/base/check.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace spillway::cpu {

namespace {

constexpr int64_t kLanes = 16, kBlock = kTileBlock;
constexpr int64_t kStrip = 8;  // Keys, or numbers of a head: 24 sums with three vectors
constexpr int64_t kPairs = kTileKeys / 2;

// (All lanes by name: g++ 12 warns of its own headers otherwise.)
constexpr __mmask16 kAll = 0xffff;

constexpr float kTop = 32700.0f;  // The largest integer: fits 16 bits, with room for rounding.
constexpr float kLeast = 1e-30f;  // What is smaller counts as 0: its factor would be infinite.
constexpr uint32_t kInfinityBits = 0x7f800000;

const int32_t* pairs_of(const float* tile) {
  return reinterpret_cast<const int32_t*>(tile);
}

inline __m512 load(const float* from) {
  return _mm512_loadu_ps(from);
}
inline __m512 set(float value) {
  return _mm512_set1_ps(value);
}
inline __m512 floats_of(__m512i integers) {
  return _mm512_maskz_cvtepi32_ps(kAll, integers);
}

// sums[i][j] += x[i * apart] . y[j], pairs: x of kStrip keys or numbers, y of kMany vectors of
// query rows.
template <int kMany>
struct PairSums {
  __m512i of[kStrip][kMany];

  inline void clear() {
#pragma GCC unroll 8
    for (int i = 0; i < kStrip; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < kMany; ++j) of[i][j] = _mm512_setzero_si512();
    }
  }
  // The same for the CPU, new for the compiler: g++ 12 would keep what a loop and what follows it
  // call sums in registers of their own, and half of them on the stack.
  inline void rename() {
#pragma GCC unroll 8
    for (int i = 0; i < kStrip; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < kMany; ++j) asm("" : "+v"(of[i][j]));
    }
  }
  inline void add(const int32_t* x, int64_t apart, const int32_t* y) {
    __m512i rows[kMany];
#pragma GCC unroll 3
    for (int j = 0; j < kMany; ++j) rows[j] = _mm512_loadu_si512(y + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kStrip; ++i) {
      // One load for all of its products: the compiler would put it into each of them.
      __m512i pair = _mm512_set1_epi32(x[i * apart]);
      asm("" : "+v"(pair));
#pragma GCC unroll 3
      for (int j = 0; j < kMany; ++j) of[i][j] = _mm512_dpwssd_epi32(of[i][j], rows[j], pair);
    }
  }
};

template <int kMany>
void score(const float* tile, const int32_t* queries, const float* steps, int64_t head_size,
           int64_t from, int64_t to, float* scores) {
  const float* const scales = tile + int16_tile_pairs(head_size);
  for (int64_t key = from; key < to; key += kStrip) {
    PairSums<kMany> sums;
    sums.clear();
    const int32_t* x = pairs_of(tile) + key * kTileLine;
    const int32_t* y = queries;
    for (int64_t k = 0; k < head_size; k += 2 * kTileLine) {
#pragma GCC unroll 1
      for (int64_t i = 0; i < kTileLine; ++i) sums.add(x + i, kTileLine, y + i * kBlock);
      x += kTileKeys * kTileLine;
      y += kTileLine * kBlock;
    }
    sums.rename();
#pragma GCC unroll 3
    for (int j = 0; j < kMany; ++j) {
      const __m512 step = load(steps + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kStrip; ++i) {
        const __m512 factor = _mm512_mul_ps(step, set(scales[key + i]));
        _mm512_storeu_ps(scores + (key + i) * kBlock + j * kLanes,
                         _mm512_mul_ps(floats_of(sums.of[i][j]), factor));
      }
    }
  }
}

template <int kMany>
void add_outputs(const float* tile, const int32_t* weights, const float* steps, const float* factor,
                 int64_t head_size, int64_t from, int64_t to, float* out) {
  for (int64_t number = 0; number < head_size; number += kStrip) {
    PairSums<kMany> sums;
    sums.clear();
    const int32_t* x =
        pairs_of(tile) + (number / kTileLine * kPairs + from / 2) * kTileLine + number % kTileLine;
    const int32_t* y = weights + from / 2 * kBlock;
#pragma GCC unroll 1
    for (int64_t key = from; key < to; key += 2, x += kTileLine, y += kBlock) sums.add(x, 1, y);
    sums.rename();
#pragma GCC unroll 3
    for (int j = 0; j < kMany; ++j) {
      const __m512 step = load(steps + j * kLanes);
      const __m512 times = factor == nullptr ? set(1.0f) : load(factor + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kStrip; ++i) {
        float* const at = out + (number + i) * kBlock + j * kLanes;
        const __m512 before = _mm512_mul_ps(load(at), times);
        _mm512_storeu_ps(at, _mm512_fmadd_ps(floats_of(sums.of[i][j]), step, before));
      }
    }
  }
}

// The bits of magnitudes, of which the unsigned maximum is a NaN's if there is one.
inline __m512i magnitude(__m512 values) {
  return _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fffffff));
}

// What numbers up to `largest`, as bits of each lane, are multiplied by so that they become
// integers up to kTop, and the step of these: NaN for what is not finite.
struct Steps {
  __m512 factor, step;

  explicit Steps(__m512i largest) {
    const __m512 most = _mm512_castsi512_ps(largest);
    const __mmask16 counts = _mm512_cmp_ps_mask(most, set(kLeast), _CMP_GT_OQ);
    const __mmask16 damaged =
        _mm512_cmpge_epu32_mask(largest, _mm512_set1_epi32(static_cast<int>(kInfinityBits)));
    factor = _mm512_maskz_div_ps(counts & ~damaged, set(kTop), most);
    step = _mm512_mask_mov_ps(_mm512_maskz_mul_ps(counts, most, set(1 / kTop)), damaged, set(NAN));
  }
};

// Two numbers of each lane as a pair. A sum with 1.5 * 2^23 has the integer in its lowest bits.
inline __m512i pair_of(__m512 first, __m512 first_factor, __m512 second, __m512 second_factor) {
  const __m512 round = set(12582912.0f);
  const __m512i low = _mm512_castps_si512(_mm512_fmadd_ps(first, first_factor, round));
  const __m512i high = _mm512_castps_si512(_mm512_fmadd_ps(second, second_factor, round));
  return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_maskz_slli_epi32(kAll, high, 16));
}

// Calls use(integral constant: vectors).
template <class Use>
inline void for_vectors(int64_t vectors, const Use& use) {
  if (vectors == 3) return use(std::integral_constant<int, 3>());
  if (vectors == 2) return use(std::integral_constant<int, 2>());
  use(std::integral_constant<int, 1>());
}

// A key's codes as lines of pairs.
inline void pack_key(const int8_t* codes, int64_t head_size, int32_t* to) {
  for (int64_t i = 0; i < head_size; i += 2 * kTileLine, to += kTileKeys * kTileLine) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    _mm512_storeu_si512(to, _mm512_maskz_cvtepi8_epi16(~__mmask32{0}, some));
  }
}

// Two values' codes as pairs of one each.
inline void pack_values(const int8_t* first, const int8_t* second, int64_t head_size, int32_t* to) {
  const auto load_16 = [](const int8_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  };
  for (int64_t i = 0; i < head_size; i += kTileLine, to += kPairs * kTileLine) {
    const __m128i a = load_16(first + i), b = load_16(second + i);
    const __m256i both = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
    _mm512_storeu_si512(to, _mm512_maskz_cvtepi8_epi16(~__mmask32{0}, both));
  }
}

}  // namespace

void pack_int16_tiles(const PromptView& view, bool values, int64_t first, int64_t end,
                      float* scratch, float* packed) {
  alignas(64) static constexpr int8_t kNoCodes[256] = {};
  const int64_t size = view.head.head_size, keys = view.keys();
  auto* const rounded = reinterpret_cast<std::byte*>(scratch);
  for (int64_t tile = first; tile < end; ++tile, packed += int16_tile_floats(size)) {
    auto* const pairs = reinterpret_cast<int32_t*>(packed);
    float* const scales = packed + int16_tile_pairs(size);
    // A row's codes, zeros behind the last one.
    const auto codes_of = [&](int64_t i, std::byte* memory) {
      const int64_t key = tile * kTileKeys + i;
      scales[i] = 0;
      if (key >= keys) return kNoCodes;
      const std::byte* const row = cache_row(view, values, key, memory);
      std::memcpy(scales + i, row, sizeof(float));
      return reinterpret_cast<const int8_t*>(row + sizeof(float));
    };
    if (!values) {
      for (int64_t i = 0; i < kTileKeys; ++i) {
        pack_key(codes_of(i, rounded), size, pairs + i * kTileLine);
      }
      continue;
    }
    for (int64_t i = 0; i < kTileKeys; i += 2) {
      const int8_t* const even = codes_of(i, rounded);
      const int8_t* const odd = codes_of(i + 1, rounded + view.head.kv_row_bytes);
      pack_values(even, odd, size, pairs + i / 2 * kTileLine);
    }
  }
}

void pack_query_int16(const float* blocks, int64_t rows, int64_t head_size, int32_t* pairs,
                      float* steps) {
  for (int64_t row = 0; row < rows; row += kLanes) {
    const int64_t at = row / kBlock * kBlock * head_size + row % kBlock;
    const float* const from = blocks + at;
    int32_t* const to = pairs + row / kBlock * kBlock * (head_size / 2) + row % kBlock;
    __m512i largest = _mm512_setzero_si512();
    for (int64_t k = 0; k < head_size; ++k) {
      largest = _mm512_maskz_max_epu32(kAll, largest, magnitude(load(from + k * kBlock)));
    }
    const Steps of(largest);
    for (int64_t k = 0; k < head_size; k += 2) {
      _mm512_storeu_si512(to + k / 2 * kBlock, pair_of(load(from + k * kBlock), of.factor,
                                                       load(from + (k + 1) * kBlock), of.factor));
    }
    _mm512_storeu_ps(steps + row, of.step);
  }
}

void int16_scores(const float* keys, const int32_t* queries, const float* steps, int64_t head_size,
                  int64_t from, int64_t to, int64_t vectors, float* scores) {
  for_vectors(vectors, [&](auto many) {
    score<decltype(many)::value>(keys, queries, steps, head_size, from, to, scores);
  });
}

void pack_weight_int16(const float* weights, const float* values, int64_t head_size, int64_t from,
                       int64_t to, int32_t* pairs, float* steps) {
  const float* const scales = values + int16_tile_pairs(head_size);
  // A value that is not finite may be of a key that some rows do not see: 0 times its scale is to
  // be 0 there. Rows that see it have a step of NaN.
  uint32_t damaged = 0;
  alignas(64) float finite[kTileKeys];
  for (int64_t key = 0; key < kTileKeys; key += kLanes) {
    const __mmask16 wrong = _mm512_fpclass_ps_mask(load(scales + key), 0x99);  // NaN, infinities
    _mm512_store_ps(finite + key, _mm512_maskz_mov_ps(_knot_mask16(wrong), load(scales + key)));
    damaged |= wrong;
  }
  __m512i largest = _mm512_setzero_si512();
  for (int64_t key = from; key < to; ++key) {
    const __m512 weight = load(weights + key * kBlock);
    const __mmask16 seen =
        damaged == 0 ? kAll : _mm512_cmp_ps_mask(weight, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const __m512 scaled = _mm512_maskz_mul_ps(seen, weight, set(scales[key]));
    largest = _mm512_maskz_max_epu32(kAll, largest, magnitude(scaled));
  }
  const Steps of(largest);
  for (int64_t key = from; key < to; key += 2) {
    const auto factor = [&](int64_t at) { return _mm512_mul_ps(of.factor, set(finite[at])); };
    _mm512_storeu_si512(pairs + key / 2 * kBlock,
                        pair_of(load(weights + key * kBlock), factor(key),
                                load(weights + (key + 1) * kBlock), factor(key + 1)));
  }
  _mm512_storeu_ps(steps, of.step);
}

void int16_outputs(const float* values, const int32_t* weights, const float* steps,
                   const float* factor, int64_t head_size, int64_t from, int64_t to,
                   int64_t vectors, float* out) {
  for_vectors(vectors, [&](auto many) {
    add_outputs<decltype(many)::value>(values, weights, steps, factor, head_size, from, to, out);
  });
}

}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES

#else

namespace spillway::cpu {

void pack_int16_tiles(const PromptView&, bool, int64_t, int64_t, float*, float*) {
  SPILLWAY_CHECK(false);
}
void pack_query_int16(const float*, int64_t, int64_t, int32_t*, float*) {
  SPILLWAY_CHECK(false);
}
void int16_scores(const float*, const int32_t*, const float*, int64_t, int64_t, int64_t, int64_t,
                  float*) {
  SPILLWAY_CHECK(false);
}
void pack_weight_int16(const float*, const float*, int64_t, int64_t, int64_t, int32_t*, float*) {
  SPILLWAY_CHECK(false);
}
void int16_outputs(const float*, const int32_t*, const float*, const float*, int64_t, int64_t,
                   int64_t, int64_t, float*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
