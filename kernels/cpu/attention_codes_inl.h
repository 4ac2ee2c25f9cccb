// What decode steps over 4-bit and 8-bit rows share (attention_q4.cc, attention_q8.cc): products of
// a run's codes with integers, by AVX-512 VNNI.
#pragma once

#include <hwy/base.h>
#include <immintrin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/attention_codes.h"
#include "kernels/cpu/unroll.h"
#include "kernels/kv_layout.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace spillway::cpu {

// Each of the two files has its own: no other is to link to what is compiled for these
// instructions.
namespace {

constexpr size_t kRows = kKvBlockRows;
static_assert(kRows == 16);
constexpr size_t kVectors = kCodesGroup / kRows;  // Of 16 words of a group

// (All lanes by name, here and in the files: g++ 12 warns of its own headers otherwise.)
constexpr __mmask16 kAll = 0xffff;

// Numbers so small that their integers' factor is beyond float32 count as 0.
constexpr float kLeast = 1e-30f;
constexpr int kNotFinite = 0x99;  // Of _mm512_fpclass_ps_mask: NaN and infinities

// Calls use(size as a constant) for the head sizes that most models have, so that rows' places are
// constants, too, and use(0) for any other.
template <class Use>
inline void for_head_size(size_t size, const Use& use) {
  if (size == 64) return use(std::integral_constant<size_t, 64>());
  if (size == 128) return use(std::integral_constant<size_t, 128>());
  use(std::integral_constant<size_t, 0>());
}

// Asks for the line at `at`, into the first-level cache.
inline void prefetch_line(const std::byte* at) {
  __builtin_prefetch(at, 0, 3);
}

inline void store_bytes(__m512i integers, void* to) {
  _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_maskz_cvtepi32_epi8(kAll, integers));
}

inline __m512i dot(__m512i sum, __m512i unsigned_bytes, __m512i signed_bytes) {
  return _mm512_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
}
inline __m512i to_all(uint32_t word) {
  return _mm512_set1_epi32(static_cast<int>(word));
}

inline __m512i joined(__m512i upper, __m512i lower) {
  return _mm512_add_epi32(_mm512_maskz_slli_epi32(kAll, upper, 8), lower);
}

// A group of a query as integers n: q = step * n, n = 256 upper + lower, both signed bytes.
struct RoundedQuery {
  __m512i upper[kVectors], lower[kVectors];  // The bytes are the lowest of each lane.
  float step;
  int32_t sum;

  explicit RoundedQuery(const float* q) {
    constexpr float kTop = 32600.0f;  // The upper bytes are signed, too.
    __m512 in[kVectors], largest = _mm512_setzero_ps();
    uint32_t damaged = 0;
    for (size_t i = 0; i < kVectors; ++i) {
      in[i] = _mm512_loadu_ps(q + 16 * i);
      largest = _mm512_maskz_max_ps(kAll, largest, _mm512_abs_ps(in[i]));
      damaged |= _mm512_fpclass_ps_mask(in[i], kNotFinite);
    }
    const float most = _mm512_reduce_max_ps(largest);
    const bool counts = damaged == 0 && most > kLeast;
    const __m512 factor = _mm512_set1_ps(counts ? kTop / most : 0.0f);
    __m512i all = _mm512_setzero_si512();
    for (size_t i = 0; i < kVectors; ++i) {
      lower[i] = counts ? _mm512_maskz_cvtps_epi32(kAll, _mm512_mul_ps(in[i], factor))
                        : _mm512_setzero_si512();
      all = _mm512_add_epi32(all, lower[i]);
      // Rounded to what a signed byte in the lowest bits leaves.
      upper[i] =
          _mm512_maskz_srai_epi32(kAll, _mm512_add_epi32(lower[i], _mm512_set1_epi32(128)), 8);
    }
    step = damaged != 0 ? NAN : counts ? most / kTop : 0.0f;
    sum = _mm512_reduce_add_epi32(all);
  }
};

// The sum of words[i], 16 rows of four codes each, times word i of a query's group, plus `offset`.
inline __m512i dot_words(const __m512i* words, const CodesQueryGroup& query, int32_t offset) {
  // Two chains a plane hide some of an instruction's latency, the next head's the rest.
  __m512i upper[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  __m512i lower[2] = {_mm512_set1_epi32(offset), _mm512_setzero_si512()};
  SPILLWAY_UNROLL_TIMES(16)
  for (size_t i = 0; i < kCodesGroup / 4; ++i) {
    upper[i % 2] = dot(upper[i % 2], words[i], to_all(query.planes[0][i]));
    lower[i % 2] = dot(lower[i % 2], words[i], to_all(query.planes[1][i]));
  }
  return joined(_mm512_add_epi32(upper[0], upper[1]), _mm512_add_epi32(lower[0], lower[1]));
}

// Weights >= 0 of a run's rows as step * (256 upper + lower). words[q] has the bytes of rows 4 q to
// 4 q + 3: the lower ones, the upper ones. In memory, from where a word goes to all lanes without
// the port that shuffles.
struct RunWeights {
  alignas(64) uint32_t words[kRows / 4][4];
  float step;

  void round(__m512 weights) {
    constexpr float kTop = 65500.0f;
    const bool damaged = _mm512_fpclass_ps_mask(weights, kNotFinite) != 0;
    const float most = damaged ? 0 : _mm512_reduce_max_ps(weights);
    const bool counts = most > kLeast;
    const __m512 factor = _mm512_set1_ps(counts ? kTop / most : 0.0f);
    const __m512i n = counts ? _mm512_maskz_cvtps_epi32(kAll, _mm512_mul_ps(weights, factor))
                             : _mm512_setzero_si512();
    const __m512i planes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13));
    _mm512_store_si512(words, _mm512_shuffle_epi8(n, planes));
    step = damaged ? NAN : counts ? most / kTop : 0.0f;
  }
};

// A group of 16 rows, four rows a word: quads[4 q + i] has those from 4 q on, in its 128 bits at b
// the bytes 16 b + 4 i to 16 b + 4 i + 3 of rows(row), which gives each row's 64 bytes.
template <class RowsAt>
inline void load_quads(const RowsAt& rows, __m512i* quads) {
  constexpr __mmask64 kBytes = ~__mmask64{0};
  constexpr __mmask32 kPairs = ~__mmask32{0};
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t q = 0; q < kRows / 4; ++q) {
    const __m512i a = rows(4 * q), b = rows(4 * q + 1), c = rows(4 * q + 2), d = rows(4 * q + 3);
    const __m512i ab = _mm512_maskz_unpacklo_epi8(kBytes, a, b),
                  cd = _mm512_maskz_unpacklo_epi8(kBytes, c, d);
    const __m512i high_ab = _mm512_maskz_unpackhi_epi8(kBytes, a, b),
                  high_cd = _mm512_maskz_unpackhi_epi8(kBytes, c, d);
    quads[4 * q + 0] = _mm512_maskz_unpacklo_epi16(kPairs, ab, cd);
    quads[4 * q + 1] = _mm512_maskz_unpackhi_epi16(kPairs, ab, cd);
    quads[4 * q + 2] = _mm512_maskz_unpacklo_epi16(kPairs, high_ab, high_cd);
    quads[4 * q + 3] = _mm512_maskz_unpackhi_epi16(kPairs, high_ab, high_cd);
  }
}

// sums[16 i to 16 i + 15] += the weighted sums of the bytes in quads[i], quads[4 + i] ...
inline void add_quads(const __m512i* quads, const RunWeights& weights, float* sums) {
  __m512i upper[kVectors], lower[kVectors];
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t i = 0; i < kVectors; ++i) upper[i] = lower[i] = _mm512_setzero_si512();
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t q = 0; q < kRows / 4; ++q) {
    const __m512i low = to_all(weights.words[q][0]), high = to_all(weights.words[q][1]);
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t i = 0; i < kVectors; ++i) {
      upper[i] = dot(upper[i], high, quads[4 * q + i]);
      lower[i] = dot(lower[i], low, quads[4 * q + i]);
    }
  }
  const __m512 step = _mm512_set1_ps(weights.step);
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t i = 0; i < kVectors; ++i) {
    const __m512 whole = _mm512_maskz_cvtepi32_ps(kAll, joined(upper[i], lower[i]));
    _mm512_storeu_ps(sums + 16 * i, _mm512_fmadd_ps(whole, step, _mm512_loadu_ps(sums + 16 * i)));
  }
}

}  // namespace
}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES
