// Decode steps over 4-bit rows of the cache by AVX-512 VNNI.
#include "kernels/cpu/attention_codes.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/quantized.h"
#include "kernels/cpu/attention_codes_inl.h"
#include "kernels/cpu/unroll.h"
#include "kernels/kv_layout.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace spillway::cpu {

namespace {

constexpr size_t kGroupsMax = kCodesGroupsMax;
static_assert(QuantTraits<Format::kQ4>::kGroup == kCodesGroup);
constexpr size_t kGroupBytes = QuantTraits<Format::kQ4>::kGroupBytes;
constexpr size_t kGroupDwords = kGroupBytes / 4;  // The scale and the minimum, then eight words
constexpr size_t kWords = QuantTraits<Format::kQ4>::kWords;
static_assert(kWords == 8);

// Scales and minima of 16 groups that lie one behind another, in order. Groups have an odd number
// of dwords, so that no two of them have theirs in the same lane.
inline __m512i group_scales(const std::byte* groups) {
  static constexpr auto kTheirs = [] {
    std::array<uint16_t, kGroupDwords> masks{};
    for (size_t i = 0; i < kRows; ++i) {
      const size_t at = i * kGroupDwords;
      masks[at / 16] = static_cast<uint16_t>(masks[at / 16] | 1u << at % 16);
    }
    return masks;
  }();
  __m512i found = _mm512_setzero_si512();
  SPILLWAY_UNROLL_TIMES(9)
  for (size_t i = 0; i < kGroupDwords; ++i) {
    found = _mm512_mask_loadu_epi32(found, kTheirs[i], groups + 64 * i);
  }
  // Lane 9 i mod 16 has those of group i.
  const __m512i order = _mm512_setr_epi32(0, 9, 2, 11, 4, 13, 6, 15, 8, 1, 10, 3, 12, 5, 14, 7);
  return _mm512_maskz_permutexvar_epi32(kAll, order, found);
}

// Scales and minima of a run, [group][row].
struct RunScales {
  __m512i of[kGroupsMax];

  RunScales() = default;  // Of none
  RunScales(const std::byte* run, size_t groups) { load(run, groups); }

  void load(const std::byte* run, size_t groups) {
    for (size_t i = 0; i < groups; ++i) of[i] = group_scales(run + i * kRows * kGroupBytes);
    if (groups == 1) return;
    if (groups == 2) {
      const __m512i even =
          _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
      const __m512i first = of[0];
      of[0] = _mm512_maskz_permutex2var_epi32(kAll, first, even, of[1]);
      of[1] = _mm512_maskz_permutex2var_epi32(kAll, first, odd, of[1]);
      return;
    }
    alignas(64) uint32_t by_row[kRows * kGroupsMax], by_group[kRows * kGroupsMax];
    for (size_t i = 0; i < groups; ++i) _mm512_store_si512(by_row + i * kRows, of[i]);
    for (size_t i = 0; i < groups; ++i) {
      for (size_t r = 0; r < kRows; ++r) by_group[i * kRows + r] = by_row[r * groups + i];
    }
    for (size_t i = 0; i < groups; ++i) of[i] = _mm512_load_si512(by_group + i * kRows);
  }
  __m512 scales(size_t group) const {
    return _mm512_maskz_cvtph_ps(kAll, _mm512_maskz_cvtepi32_epi16(kAll, of[group]));
  }
  __m512 minima(size_t group) const {
    const __m512i high = _mm512_maskz_srli_epi32(kAll, of[group], 16);
    return _mm512_maskz_cvtph_ps(kAll, _mm512_maskz_cvtepi32_epi16(kAll, high));
  }
};

inline __m256i load_words(const std::byte* group) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group + sizeof(GroupScale)));
}

// words[w] = word w of the same group of 16 rows, a row a lane. `group`: of the first row.
inline void load_words_by_row(const std::byte* group, const std::byte* ahead, size_t row_bytes,
                              __m512i* words) {
  const auto rows = [&](size_t row) {  // `row` and the fourth after it
    prefetch_line(ahead + 64 * (row % 4 + row / 8 * 4));
    const __m256i low = load_words(group + row * row_bytes);
    return _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(low),
                                    load_words(group + (row + 4) * row_bytes), 1);
  };
  __m512i four[2][4];  // [rows 0 to 7, 8 to 15]: words i and i + 4 in the 128-bit halves
  SPILLWAY_UNROLL_TIMES(2)
  for (size_t i = 0; i < 2; ++i) {
    const __m512i a = rows(8 * i), b = rows(8 * i + 1), c = rows(8 * i + 2), d = rows(8 * i + 3);
    const __m512i ab = _mm512_maskz_unpacklo_epi32(kAll, a, b),
                  cd = _mm512_maskz_unpacklo_epi32(kAll, c, d);
    const __m512i high_ab = _mm512_maskz_unpackhi_epi32(kAll, a, b),
                  high_cd = _mm512_maskz_unpackhi_epi32(kAll, c, d);
    four[i][0] = _mm512_maskz_unpacklo_epi64(0xff, ab, cd);
    four[i][1] = _mm512_maskz_unpackhi_epi64(0xff, ab, cd);
    four[i][2] = _mm512_maskz_unpacklo_epi64(0xff, high_ab, high_cd);
    four[i][3] = _mm512_maskz_unpackhi_epi64(0xff, high_ab, high_cd);
  }
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t i = 0; i < 4; ++i) {
    words[i] = _mm512_maskz_shuffle_i32x4(kAll, four[0][i], four[1][i], 0x88);
    words[i + 4] = _mm512_maskz_shuffle_i32x4(kAll, four[0][i], four[1][i], 0xdd);
  }
}

// The lines of 16 rows of a group.
constexpr size_t kLines = kRows * kGroupBytes / 64;
static_assert(kLines == 9 && kRows * kGroupBytes % 64 == 0);

// Both nibbles of a group's words: byte 4 l + b is number 16 b + l of the group.
inline __m512i load_codes(const std::byte* group) {
  const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
  const __m512i twice = _mm512_maskz_broadcast_i64x4(0xff, load_words(group));
  return _mm512_and_si512(_mm512_maskz_srlv_epi32(kAll, twice, shifts), _mm512_set1_epi8(15));
}

void round_q4_query(const float* q, size_t size, CodesQueryGroup* groups) {
  for (size_t first = 0; first < size; first += kCodesGroup, ++groups) {
    const RoundedQuery rounded(q + first);
    const auto store = [&](const __m512i* bytes, uint32_t* plane) {
      __m512i all = _mm512_setzero_si512();
      for (unsigned i = 0; i < kVectors; ++i) {
        const __m512i low = _mm512_and_si512(bytes[i], _mm512_set1_epi32(255));
        const __m128i place = _mm_cvtsi32_si128(static_cast<int>(8 * i));
        all = _mm512_or_si512(all, _mm512_maskz_sll_epi32(kAll, low, place));
      }
      _mm512_storeu_si512(plane, all);
    };
    store(rounded.upper, groups->planes[0]);
    store(rounded.lower, groups->planes[1]);
    groups->step = rounded.step;
    groups->sum = rounded.sum;
  }
}

template <size_t kSize>
void dot_sized(const CodesRuns& runs, const CodesQueryGroup* const* queries, float* const* scores) {
  const size_t size = kSize > 0 ? kSize : runs.size;
  const size_t groups = size / kCodesGroup, row_bytes = groups * kGroupBytes;
  const __m512i nibble = _mm512_set1_epi8(15);
  for (size_t i = 0; i < runs.count; ++i, queries += runs.group, scores += runs.group) {
    const std::byte* const run = runs.at + i * kRows * row_bytes;
    const RunScales run_scales(run, groups);
    for (size_t g = 0; g < groups; ++g) {
      const std::byte* const lines = runs.ahead + i * kRows * row_bytes + 64 * kLines * g;
      __m512i words[kWords], codes[2 * kWords];
      load_words_by_row(run + g * kGroupBytes, lines, row_bytes, words);
      prefetch_line(lines + 64 * (kLines - 1));
      SPILLWAY_UNROLL_TIMES(8)
      for (size_t w = 0; w < kWords; ++w) {
        codes[w] = _mm512_and_si512(words[w], nibble);
        codes[kWords + w] = _mm512_and_si512(_mm512_maskz_srli_epi32(kAll, words[w], 4), nibble);
      }
      const __m512 scales = run_scales.scales(g), minima = run_scales.minima(g);
      dot_heads(codes, runs.group, queries, g, 0, [&](size_t h, __m512i products) {
        const CodesQueryGroup& query = queries[h][g];
        float* const at = scores[h] + runs.first;
        const __m512 all = _mm512_maskz_cvtepi32_ps(kAll, products);
        const __m512 sum = _mm512_set1_ps(static_cast<float>(query.sum));
        const __m512 whole = _mm512_fmadd_ps(scales, all, _mm512_mul_ps(minima, sum));
        const __m512 before = g == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(at);
        _mm512_storeu_ps(at, _mm512_fmadd_ps(whole, _mm512_set1_ps(query.step), before));
      });
    }
  }
}

void dot_q4_runs(const CodesRuns& runs, const CodesQueryGroup* const* queries,
                 float* const* scores) {
  for_head_size(runs.size, [&](auto constant) {
    dot_sized<decltype(constant)::value>(runs, queries, scores);
  });
}

template <size_t kSize>
void sum_sized(const CodesRuns& runs, size_t rows, const float* const* weights, float* const* sums,
               float* const* minima) {
  const size_t size = kSize > 0 ? kSize : runs.size, heads = runs.group;
  SPILLWAY_CHECK(heads <= kStepHeadsMax);
  const size_t groups = size / kCodesGroup, row_bytes = groups * kGroupBytes;
  const auto there = static_cast<__mmask16>((1u << rows) - 1);
  RunScales run_scales;
  // A part is a group of a run.
  const size_t parts = runs.count * groups, most = rounded_together(heads);
  for (size_t first = 0; first < parts; first += most) {
    const size_t end = std::min(first + most, parts);
    HeadWeights scaled;
    RunWeights rounded[kStepHeadsMax];
    for (size_t part = first, at = 0; part < end; ++part) {
      const size_t i = part / groups, g = part % groups;
      if (g == 0) run_scales.load(runs.at + i * kRows * row_bytes, groups);
      // What lies in rows that are not in use may be NaN.
      const __m512 scales = _mm512_maskz_mov_ps(there, run_scales.scales(g));
      const __m512 lowest = _mm512_maskz_mov_ps(there, run_scales.minima(g));
      for (size_t h = i * heads; h < (i + 1) * heads; ++h) {
        const __m512 weight = _mm512_maskz_loadu_ps(there, weights[h] + runs.first);
        float* const sum = minima[h] + g * kRows;
        _mm512_storeu_ps(sum, _mm512_fmadd_ps(weight, lowest, _mm512_loadu_ps(sum)));
        scaled.set(at++, _mm512_mul_ps(weight, scales));
      }
    }
    round_weights(&scaled, (end - first) * heads, rounded);
    for (size_t part = first; part < end; ++part) {
      const size_t i = part / groups, g = part % groups;
      const std::byte* const group = runs.at + i * kRows * row_bytes + g * kGroupBytes;
      const std::byte* const lines = runs.ahead + 64 * kLines * part;
      __m512i quads[kRows];
      load_quads(
          [&](size_t row) {
            if (row % 2 == 0) prefetch_line(lines + 64 * (row / 2));
            return load_codes(group + row * row_bytes);
          },
          quads);
      prefetch_line(lines + 64 * (kLines - 1));
      add_quads(quads, heads, rounded + (part - first) * heads, sums + i * heads, g * kCodesGroup);
    }
  }
}

void sum_q4_runs(const CodesRuns& runs, size_t rows, const float* const* weights,
                 float* const* sums, float* const* minima) {
  for_head_size(runs.size, [&](auto constant) {
    sum_sized<decltype(constant)::value>(runs, rows, weights, sums, minima);
  });
}

void finish_q4_sums(const float* minima, size_t size, float* sums) {
  for (size_t g = 0; g < size / kCodesGroup; ++g) {
    float* const group = sums + g * kCodesGroup;
    const __m512 lowest = _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_loadu_ps(minima + g * kRows)));
    // Vector i has in its 128 bits at l / 4 the bytes 4 l + b of i = l % 4, which are numbers
    // 16 b + l: number b of four lanes of vector i goes to lane i of the same four of vector b.
    __m512 low[2], high[2];
    for (size_t i = 0; i < 2; ++i) {
      const __m512 a = _mm512_loadu_ps(group + 32 * i), b = _mm512_loadu_ps(group + 32 * i + 16);
      low[i] = _mm512_maskz_unpacklo_ps(kAll, a, b);
      high[i] = _mm512_maskz_unpackhi_ps(kAll, a, b);
    }
    const auto store = [&](size_t b, __m512 numbers) {
      _mm512_storeu_ps(group + 16 * b, _mm512_add_ps(numbers, lowest));
    };
    store(0, _mm512_maskz_shuffle_ps(kAll, low[0], low[1], 0x44));
    store(1, _mm512_maskz_shuffle_ps(kAll, low[0], low[1], 0xee));
    store(2, _mm512_maskz_shuffle_ps(kAll, high[0], high[1], 0x44));
    store(3, _mm512_maskz_shuffle_ps(kAll, high[0], high[1], 0xee));
  }
}

}  // namespace

const Q4Steps kQ4Vnni = {{&round_q4_query, &dot_q4_runs}, &sum_q4_runs, &finish_q4_sums};

}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES

#endif
