// What decode steps over 4-bit and 8-bit rows share (attention_q4.cc, attention_q8.cc): products of
// a run's codes with integers, by AVX-512 VNNI.
#pragma once

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
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

// Asks for the line at `at`, into the second-level cache, since the first one's miss buffers are
// too few for memory's rate (two Xeon cores: 1.04 to 1.05 times as fast).
inline void prefetch_line(const std::byte* at) {
  __builtin_prefetch(at, 0, 2);
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

// sum += products of the bytes with those of a word in memory. (In assembly: of intrinsics g++ 12
// makes two instructions.)
inline void add_dot(__m512i& sum, __m512i unsigned_bytes, const uint32_t& signed_bytes) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "m"(signed_bytes));
}

// found[h] = the sum of words[i], 16 rows of four codes each, times word i of a group of query h,
// plus `offset` for each code, times the query's number. Of two queries at once: their chains hide
// an instruction's latency.
template <size_t kHeads>
inline void dot_words(const __m512i* words, const CodesQueryGroup* const* queries, size_t group,
                      int32_t offset, __m512i* found) {
  __m512i upper[kHeads][2], lower[kHeads][2];
  SPILLWAY_UNROLL_TIMES(2)
  for (size_t h = 0; h < kHeads; ++h) {
    upper[h][0] = upper[h][1] = lower[h][1] = _mm512_setzero_si512();
    lower[h][0] = _mm512_set1_epi32(offset * queries[h][group].sum);
  }
  SPILLWAY_UNROLL_TIMES(16)
  for (size_t i = 0; i < kCodesGroup / 4; ++i) {
    SPILLWAY_UNROLL_TIMES(2)
    for (size_t h = 0; h < kHeads; ++h) {
      add_dot(upper[h][i % 2], words[i], queries[h][group].planes[0][i]);
      add_dot(lower[h][i % 2], words[i], queries[h][group].planes[1][i]);
    }
  }
  SPILLWAY_UNROLL_TIMES(2)
  for (size_t h = 0; h < kHeads; ++h) {
    found[h] = joined(_mm512_add_epi32(upper[h][0], upper[h][1]),
                      _mm512_add_epi32(lower[h][0], lower[h][1]));
  }
}

// Calls use(head, sums of the codes' products with it) for all of them, as dot_words() finds them.
template <class Use>
inline void dot_heads(const __m512i* words, size_t heads, const CodesQueryGroup* const* queries,
                      size_t group, int32_t offset, const Use& use) {
  __m512i found[2];
  size_t h = 0;
  for (; h + 2 <= heads; h += 2) {
    dot_words<2>(words, queries + h, group, offset, found);
    use(h, found[0]);
    use(h + 1, found[1]);
  }
  if (h == heads) return;
  dot_words<1>(words, queries + h, group, offset, found);
  use(h, found[0]);
}

// Sums of neighbouring 128 bits, those of `a` before those of `b`.
inline __m512i add_blocks(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_maskz_shuffle_i32x4(kAll, a, b, 0x88),
                          _mm512_maskz_shuffle_i32x4(kAll, a, b, 0xdd));
}

// What dot_words() finds, of one query alone, for which codes need not change places: rows(row)
// gives a row's 64 codes in the order of the query's.
template <class RowsAt>
inline __m512i dot_rows(const RowsAt& rows, const CodesQueryGroup& query, int32_t offset) {
  const __m512i upper = _mm512_loadu_si512(query.planes[0]);
  const __m512i lower = _mm512_loadu_si512(query.planes[1]);
  const auto dot_row = [&](size_t row) {
    const __m512i codes = rows(row);
    const __m512i high = dot(_mm512_setzero_si512(), codes, upper);
    return dot(_mm512_maskz_slli_epi32(kAll, high, 8), codes, lower);
  };
  constexpr __mmask8 kPairs = 0xff;
  __m512i fours[kRows / 4];  // In each 128 bits partial sums of four rows
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t i = 0; i < kRows / 4; ++i) {
    const __m512i a = dot_row(4 * i), b = dot_row(4 * i + 1);
    const __m512i ab = _mm512_add_epi32(_mm512_maskz_unpacklo_epi32(kAll, a, b),
                                        _mm512_maskz_unpackhi_epi32(kAll, a, b));
    const __m512i c = dot_row(4 * i + 2), d = dot_row(4 * i + 3);
    const __m512i cd = _mm512_add_epi32(_mm512_maskz_unpacklo_epi32(kAll, c, d),
                                        _mm512_maskz_unpackhi_epi32(kAll, c, d));
    fours[i] = _mm512_add_epi32(_mm512_maskz_unpacklo_epi64(kPairs, ab, cd),
                                _mm512_maskz_unpackhi_epi64(kPairs, ab, cd));
  }
  const __m512i all = add_blocks(add_blocks(fours[0], fours[1]), add_blocks(fours[2], fours[3]));
  return _mm512_add_epi32(all, _mm512_set1_epi32(offset * query.sum));
}

// Weights >= 0 of a run's rows as step * (256 upper + lower). words[q] has the bytes of rows 4 q to
// 4 q + 3: the lower ones, the upper ones. In memory, from where a word goes to all lanes without
// the port that shuffles.
struct RunWeights {
  alignas(64) uint32_t words[kRows / 4][4];
  float step;
};

// The larger of two vectors' lanes, as integers: so are the bits of numbers >= 0 ordered, and those
// of infinities and NaN are the largest.
inline __m512i larger(__m512i a, __m512i b) {
  return _mm512_maskz_max_epu32(kAll, a, b);
}

constexpr size_t kRoundedTogether = 4;
static_assert(kStepHeadsMax % kRoundedTogether == 0);

// The weights of some heads, each for a run's rows or a group of these.
struct HeadWeights {
  alignas(64) float of[kStepHeadsMax][kRows];

  // Without signs, which only 0 has and NaN.
  void set(size_t place, __m512 weights) { _mm512_store_ps(of[place], _mm512_abs_ps(weights)); }
};

// Rounds the weights of kRoundedTogether heads from `weights` on: their largest are found and
// divided by together.
inline void round_some(const float (*weights)[kRows], RunWeights* rounded) {
  constexpr float kTop = 65500.0f;
  constexpr __mmask8 kPairs = 0xff;
  const auto bits = [&](size_t head) { return _mm512_load_si512(weights[head]); };
  const __m512i a = larger(_mm512_maskz_unpacklo_epi32(kAll, bits(0), bits(1)),
                           _mm512_maskz_unpackhi_epi32(kAll, bits(0), bits(1)));
  const __m512i b = larger(_mm512_maskz_unpacklo_epi32(kAll, bits(2), bits(3)),
                           _mm512_maskz_unpackhi_epi32(kAll, bits(2), bits(3)));
  const __m512i c =
      larger(_mm512_maskz_unpacklo_epi64(kPairs, a, b), _mm512_maskz_unpackhi_epi64(kPairs, a, b));
  const __m256i d =
      _mm256_max_epu32(_mm512_castsi512_si256(c), _mm512_maskz_extracti64x4_epi64(0xf, c, 1));
  const __m128i e = _mm_max_epu32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
  const __m128 most = _mm_castsi128_ps(e), top = _mm_set1_ps(kTop);
  const __mmask8 damaged = _mm_cmpgt_epu32_mask(e, _mm_set1_epi32(0x7f7fffff));
  const __mmask8 counts = _mm_cmp_ps_mask(most, _mm_set1_ps(kLeast), _CMP_GT_OQ) & ~damaged;
  alignas(16) float factors[kRoundedTogether], steps[kRoundedTogether];
  _mm_store_ps(factors, _mm_maskz_div_ps(counts, top, most));
  const __m128 counted = _mm_maskz_div_ps(counts, most, top);
  _mm_store_ps(steps, _mm_mask_mov_ps(counted, damaged, _mm_set1_ps(NAN)));
  asm("" : "+m"(factors), "+m"(steps));  // From memory a number goes to all lanes for nothing.
  const __m512i planes =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13));
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t h = 0; h < kRoundedTogether; ++h) {
    const __m512 whole = _mm512_mul_ps(_mm512_load_ps(weights[h]), _mm512_set1_ps(factors[h]));
    const __m512i n = _mm512_maskz_cvtps_epi32(kAll, whole);
    _mm512_store_si512(rounded[h].words, _mm512_shuffle_epi8(n, planes));
    rounded[h].step = steps[h];
  }
}

// Rounds those of `count` heads. Those behind them, up to a multiple of kRoundedTogether, change.
inline void round_weights(HeadWeights* weights, size_t count, RunWeights* rounded) {
  for (size_t h = count; h % kRoundedTogether != 0; ++h) weights->set(h, _mm512_setzero_ps());
  for (size_t h = 0; h < count; h += kRoundedTogether) round_some(weights->of + h, rounded + h);
}

// How many runs (8 bits) or groups of runs (4 bits), each with the weights of `heads` heads, have
// these rounded before any is multiplied. To round four heads' is one chain of instructions, as
// long as their products take, so four such chains overlap. Of one head there is one chain alone:
// no prefetch is issued while weights are rounded.
inline size_t rounded_together(size_t heads) {
  return heads == 1 ? kRoundedTogether : std::max<size_t>(1, 4 * kRoundedTogether / heads);
}

// A group of 16 rows, four rows a word: quads[4 q + i] has those from 4 q on, in its 128 bits at b
// the bytes 16 b + 4 i to 16 b + 4 i + 3 of rows(row), which gives each row's 64 bytes.
template <class RowsAt>
inline void load_quads(const RowsAt& rows, __m512i* quads) {
  constexpr __mmask64 kBytes = ~__mmask64{0};
  constexpr __mmask32 kPairs = ~__mmask32{0};
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t q = 0; q < kRows / 4; ++q) {
    __m512i a = rows(4 * q), b = rows(4 * q + 1), c = rows(4 * q + 2), d = rows(4 * q + 3);
    asm("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d));  // Loaded once: most are in two lines.
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

// sums[h][column + 16 i + lane] += the weighted sums of the bytes in quads[i], quads[4 + i] ... of
// `heads` heads. One after another: four at once in halves of the columns are slower (1.02
// to 1.06).
inline void add_quads(const __m512i* quads, size_t heads, const RunWeights* weights,
                      float* const* sums, size_t column) {
  for (size_t h = 0; h < heads; ++h) {
    __m512i upper[kVectors], lower[kVectors];
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t i = 0; i < kVectors; ++i) upper[i] = lower[i] = _mm512_setzero_si512();
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t q = 0; q < kRows / 4; ++q) {
      const __m512i low = to_all(weights[h].words[q][0]), high = to_all(weights[h].words[q][1]);
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t i = 0; i < kVectors; ++i) {
        upper[i] = dot(upper[i], high, quads[4 * q + i]);
        lower[i] = dot(lower[i], low, quads[4 * q + i]);
      }
    }
    const __m512 step = _mm512_set1_ps(weights[h].step);
    float* const to = sums[h] + column;
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t i = 0; i < kVectors; ++i) {
      const __m512 whole = _mm512_maskz_cvtepi32_ps(kAll, joined(upper[i], lower[i]));
      _mm512_storeu_ps(to + 16 * i, _mm512_fmadd_ps(whole, step, _mm512_loadu_ps(to + 16 * i)));
    }
  }
}

}  // namespace
}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES
