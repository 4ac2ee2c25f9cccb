// Decode steps over 8-bit rows of the cache by AVX-512 VNNI.
#include "kernels/cpu/attention_codes.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cpu/attention_codes_inl.h"
#include "kernels/cpu/unroll.h"
#include "kernels/kv_layout.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace spillway::cpu {

namespace {

constexpr size_t kScaleBytes = sizeof(float);  // In front of a row's codes

inline __m512 scales_of(const std::byte* run, size_t row_bytes, __mmask16 rows) {
  const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i at = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(static_cast<int>(row_bytes)));
  return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), rows, at, run, 1);
}

inline __m128i load_16(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// words[w] = codes 4 w to 4 w + 3 of the same group of 16 rows, a row a lane, plus 128: unsigned.
inline void load_words_by_row(const std::byte* group, const std::byte* ahead, size_t row_bytes,
                              __m512i* words) {
  const __m512i flip = _mm512_set1_epi8(-128);
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t quarter = 0; quarter < 4; ++quarter) {
    const auto rows = [&](size_t row) {  // `row` and every fourth after it
      const std::byte* const at = group + 16 * quarter + row * row_bytes;
      prefetch_line(ahead + 64 * (4 * quarter + row));
      __m512i all = _mm512_castsi128_si512(load_16(at));
      all = _mm512_inserti32x4(all, load_16(at + 4 * row_bytes), 1);
      all = _mm512_inserti32x4(all, load_16(at + 8 * row_bytes), 2);
      return _mm512_xor_si512(_mm512_inserti32x4(all, load_16(at + 12 * row_bytes), 3), flip);
    };
    const __m512i a = rows(0), b = rows(1), c = rows(2), d = rows(3);
    const __m512i ab = _mm512_maskz_unpacklo_epi32(kAll, a, b),
                  cd = _mm512_maskz_unpacklo_epi32(kAll, c, d);
    const __m512i high_ab = _mm512_maskz_unpackhi_epi32(kAll, a, b),
                  high_cd = _mm512_maskz_unpackhi_epi32(kAll, c, d);
    words[4 * quarter + 0] = _mm512_maskz_unpacklo_epi64(0xff, ab, cd);
    words[4 * quarter + 1] = _mm512_maskz_unpackhi_epi64(0xff, ab, cd);
    words[4 * quarter + 2] = _mm512_maskz_unpacklo_epi64(0xff, high_ab, high_cd);
    words[4 * quarter + 3] = _mm512_maskz_unpackhi_epi64(0xff, high_ab, high_cd);
  }
}

void round_q8_query(const float* q, size_t size, CodesQueryGroup* groups) {
  for (size_t first = 0; first < size; first += kCodesGroup, ++groups) {
    const RoundedQuery rounded(q + first);
    for (size_t i = 0; i < kVectors; ++i) {
      store_bytes(rounded.upper[i], groups->planes[0] + 4 * i);
      store_bytes(rounded.lower[i], groups->planes[1] + 4 * i);
    }
    groups->step = rounded.step;
    groups->sum = rounded.sum;
  }
}

template <size_t kSize>
void dot_sized(const CodesRuns& runs, const CodesQueryGroup* const* queries, float* const* scores) {
  const size_t size = kSize > 0 ? kSize : runs.size;
  const size_t groups = size / kCodesGroup, row_bytes = kScaleBytes + size;
  for (size_t i = 0; i < runs.count; ++i, queries += runs.group, scores += runs.group) {
    const std::byte* const run = runs.at + i * kRows * row_bytes;
    const std::byte* const ahead = runs.ahead + i * kRows * row_bytes;
    for (size_t g = 0; g < groups; ++g) {
      const std::byte* const codes = run + kScaleBytes + g * kCodesGroup;
      const std::byte* const lines = ahead + g * kRows * kCodesGroup;
      // Those of the last group's sums, when the rows are near: all at first waits for each row.
      const auto scales = [&] {
        return g + 1 < groups ? _mm512_setzero_ps() : scales_of(run, row_bytes, kAll);
      };
      const auto add = [&](size_t h, __m512i whole, __m512 of_rows) {
        float* const at = scores[h] + runs.first;
        const __m512 before = g == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(at);
        const __m512 step = _mm512_set1_ps(queries[h][g].step);
        const __m512 sum = _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(kAll, whole), step, before);
        _mm512_storeu_ps(at, g + 1 < groups ? sum : _mm512_mul_ps(sum, of_rows));
      };
      if (runs.group == 1) {
        const auto row = [&](size_t r) {
          prefetch_line(lines + 64 * r);
          const __m512i numbers = _mm512_loadu_si512(codes + r * row_bytes);
          return _mm512_xor_si512(numbers, _mm512_set1_epi8(-128));
        };
        const __m512i whole = dot_rows(row, queries[0][g], -128);
        add(0, whole, scales());
        continue;
      }
      __m512i words[kCodesGroup / 4];
      load_words_by_row(codes, lines, row_bytes, words);
      const __m512 of_rows = scales();
      dot_heads(words, runs.group, queries, g, -128,
                [&](size_t h, __m512i whole) { add(h, whole, of_rows); });
    }
    prefetch_line(ahead + kRows * size);  // The last line, of as many bytes as the scales have
  }
}

void dot_q8_runs(const CodesRuns& runs, const CodesQueryGroup* const* queries,
                 float* const* scores) {
  for_head_size(runs.size, [&](auto constant) {
    dot_sized<decltype(constant)::value>(runs, queries, scores);
  });
}

template <size_t kSize>
void sum_sized(const CodesRuns& runs, size_t rows, const float* const* weights,
               float* const* sums) {
  const size_t size = kSize > 0 ? kSize : runs.size, group = runs.group;
  SPILLWAY_CHECK(group <= kStepHeadsMax);
  const size_t groups = size / kCodesGroup, row_bytes = kScaleBytes + size;
  const auto there = static_cast<__mmask16>((1u << rows) - 1);
  const size_t most = rounded_together(group);
  for (size_t first = 0; first < runs.count; first += most) {
    const size_t count = std::min(most, runs.count - first);
    const std::byte* const run = runs.at + first * kRows * row_bytes;
    const std::byte* const ahead = runs.ahead + first * kRows * row_bytes;
    HeadWeights scaled;
    RunWeights rounded[kStepHeadsMax];
    for (size_t i = 0; i < count; ++i) {
      const __m512 scales = scales_of(run + i * kRows * row_bytes, row_bytes, there);
      for (size_t h = i * group; h < (i + 1) * group; ++h) {
        // What lies in rows that are not in use may be NaN.
        const float* const from = weights[first * group + h] + runs.first;
        scaled.set(h, _mm512_mul_ps(_mm512_maskz_loadu_ps(there, from), scales));
      }
    }
    round_weights(&scaled, count * group, rounded);
    for (size_t i = 0; i < count; ++i) {
      for (size_t g = 0; g < groups; ++g) {
        const size_t codes = i * kRows * row_bytes + kScaleBytes + g * kCodesGroup;
        const size_t lines = i * kRows * row_bytes + g * kRows * kCodesGroup;
        __m512i quads[kRows];
        load_quads(
            [&](size_t row) {
              prefetch_line(ahead + lines + 64 * row);
              return _mm512_loadu_si512(run + codes + row * row_bytes);
            },
            quads);
        add_quads(quads, group, rounded + i * group, sums + (first + i) * group, g * kCodesGroup);
      }
      prefetch_line(ahead + i * kRows * row_bytes + kRows * size);
    }
  }
}

void sum_q8_runs(const CodesRuns& runs, size_t rows, const float* const* weights,
                 float* const* sums) {
  for_head_size(runs.size, [&](auto constant) {
    sum_sized<decltype(constant)::value>(runs, rows, weights, sums);
  });
}

// Block b of 128 bits of a group's vector i, as add_quads() leaves it, is block i of vector b.
void order_q8_sums(size_t size, float* sums) {
  for (float* group = sums; group < sums + size; group += kCodesGroup) {
    __m512 low[2], high[2];  // Blocks 0 and 1, and 2 and 3, of two vectors
    for (size_t i = 0; i < 2; ++i) {
      const __m512 a = _mm512_loadu_ps(group + 32 * i), b = _mm512_loadu_ps(group + 32 * i + 16);
      low[i] = _mm512_maskz_shuffle_f32x4(kAll, a, b, 0x44);
      high[i] = _mm512_maskz_shuffle_f32x4(kAll, a, b, 0xee);
    }
    _mm512_storeu_ps(group, _mm512_maskz_shuffle_f32x4(kAll, low[0], low[1], 0x88));
    _mm512_storeu_ps(group + 16, _mm512_maskz_shuffle_f32x4(kAll, low[0], low[1], 0xdd));
    _mm512_storeu_ps(group + 32, _mm512_maskz_shuffle_f32x4(kAll, high[0], high[1], 0x88));
    _mm512_storeu_ps(group + 48, _mm512_maskz_shuffle_f32x4(kAll, high[0], high[1], 0xdd));
  }
}

}  // namespace

const Q8Steps kQ8Vnni = {{&round_q8_query, &dot_q8_runs}, &sum_q8_runs, &order_q8_sums};

}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES

#endif
