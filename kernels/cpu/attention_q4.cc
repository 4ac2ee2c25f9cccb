#include "kernels/cpu/attention_q4.h"

#include "kernels/base/check.h"
#include "kernels/kv_layout.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/unroll.h"

namespace spillway::cpu {

namespace {
constexpr size_t kGroupsMax = 16;  // Of a head
}

bool attends_packed_q4(int64_t head_size) {
  static const bool vnni = __builtin_cpu_supports("avx512vnni") != 0 &&
                           __builtin_cpu_supports("avx512bw") != 0 &&
                           __builtin_cpu_supports("avx512vl") != 0;
  return vnni && head_size % static_cast<int64_t>(kQ4Group) == 0 &&
         head_size <= static_cast<int64_t>(kQ4Group * kGroupsMax);
}

}  // namespace spillway::cpu

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace spillway::cpu {

namespace {

constexpr size_t kRows = kKvBlockRows;
static_assert(kRows == 16);
constexpr size_t kGroupBytes = QuantTraits<Format::kQ4>::kGroupBytes;
constexpr size_t kGroupDwords = kGroupBytes / 4;  // The scale and the minimum, then eight words
constexpr size_t kWords = QuantTraits<Format::kQ4>::kWords;
static_assert(kWords == 8);

// The largest integer of a query: its highest plane is a signed byte, too.
constexpr float kTop = 8300000.0f;

// (All lanes by name, here and below: g++ 12 warns of its own headers otherwise.)
constexpr __mmask16 kAll = 0xffff;

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

  RunScales(const std::byte* run, size_t groups) {
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
inline void load_words_by_row(const std::byte* group, size_t row_bytes, __m512i* words) {
  const auto rows = [&](size_t row) {  // `row` and the fourth after it
    const __m256i low = load_words(group + row * row_bytes);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low),
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

}  // namespace

namespace {

// Bits 8 to 31, rounded to what a signed byte in the lowest ones leaves.
inline __m512i without_low(__m512i n) {
  return _mm512_maskz_srai_epi32(kAll, _mm512_add_epi32(n, _mm512_set1_epi32(128)), 8);
}

}  // namespace

void round_q4_query(const float* q, size_t size, Q4QueryGroup* groups) {
  for (size_t first = 0; first < size; first += kQ4Group, ++groups) {
    __m512 in[4], largest = _mm512_setzero_ps();
    uint32_t damaged = 0;
    for (size_t i = 0; i < 4; ++i) {
      in[i] = _mm512_loadu_ps(q + first + 16 * i);
      largest = _mm512_maskz_max_ps(kAll, largest, _mm512_abs_ps(in[i]));
      damaged |= _mm512_fpclass_ps_mask(in[i], 0x99);  // NaN and infinities
    }
    const float most = _mm512_reduce_max_ps(largest);
    // Numbers so small that their integers' factor is beyond float32 count as 0.
    const bool counts = damaged == 0 && most > 1e-30f;
    const __m512 factor = _mm512_set1_ps(counts ? kTop / most : 0.0f);
    __m512i planes[3], sum = _mm512_setzero_si512();
    for (__m512i& plane : planes) plane = _mm512_setzero_si512();
    const auto put = [&](__m512i& plane, __m512i bytes, unsigned place) {
      const __m512i low = _mm512_and_si512(bytes, _mm512_set1_epi32(255));
      plane = _mm512_or_si512(
          plane, _mm512_maskz_sll_epi32(kAll, low, _mm_cvtsi32_si128(static_cast<int>(8 * place))));
    };
    for (unsigned i = 0; i < 4; ++i) {
      const __m512i n = counts ? _mm512_maskz_cvtps_epi32(kAll, _mm512_mul_ps(in[i], factor))
                               : _mm512_setzero_si512();
      sum = _mm512_add_epi32(sum, n);
      const __m512i upper = without_low(n);
      put(planes[2], n, i);
      put(planes[1], upper, i);
      put(planes[0], without_low(upper), i);
    }
    for (size_t p = 0; p < 3; ++p) _mm512_storeu_si512(groups->planes[p], planes[p]);
    groups->step = damaged != 0 ? NAN : counts ? most / kTop : 0.0f;
    groups->sum = static_cast<float>(_mm512_reduce_add_epi32(sum));
  }
}

namespace {

inline __m512i dot(__m512i sum, __m512i codes, uint32_t query) {
  return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(static_cast<int>(query)));
}

}  // namespace

void dot_q4_run(const std::byte* run, size_t size, size_t heads, const Q4QueryGroup* const* queries,
                float* const* scores) {
  const size_t groups = size / kQ4Group, row_bytes = groups * kGroupBytes;
  const RunScales run_scales(run, groups);
  const __m512i nibble = _mm512_set1_epi8(15);
  for (size_t g = 0; g < groups; ++g) {
    __m512i words[kWords], codes[2 * kWords];
    load_words_by_row(run + g * kGroupBytes, row_bytes, words);
    SPILLWAY_UNROLL_TIMES(8)
    for (size_t w = 0; w < kWords; ++w) {
      codes[w] = _mm512_and_si512(words[w], nibble);
      codes[kWords + w] = _mm512_and_si512(_mm512_maskz_srli_epi32(kAll, words[w], 4), nibble);
    }
    const __m512 scales = run_scales.scales(g), minima = run_scales.minima(g);
    for (size_t h = 0; h < heads; ++h) {
      const Q4QueryGroup& query = queries[h][g];
      // Two chains a plane hide some of an instruction's latency, the next head's the rest.
      __m512i sums[2][3];
      SPILLWAY_UNROLL_TIMES(3)
      for (size_t p = 0; p < 3; ++p) sums[0][p] = sums[1][p] = _mm512_setzero_si512();
      SPILLWAY_UNROLL_TIMES(16)
      for (size_t i = 0; i < 2 * kWords; ++i) {
        SPILLWAY_UNROLL_TIMES(3)
        for (size_t p = 0; p < 3; ++p) {
          sums[i % 2][p] = dot(sums[i % 2][p], codes[i], query.planes[p][i]);
        }
      }
      __m512 plane[3];
      SPILLWAY_UNROLL_TIMES(3)
      for (size_t p = 0; p < 3; ++p) {
        plane[p] = _mm512_maskz_cvtepi32_ps(kAll, _mm512_add_epi32(sums[0][p], sums[1][p]));
      }
      const __m512 lower = _mm512_fmadd_ps(plane[1], _mm512_set1_ps(256.0f), plane[2]);
      const __m512 all = _mm512_fmadd_ps(plane[0], _mm512_set1_ps(65536.0f), lower);
      const __m512 whole =
          _mm512_fmadd_ps(scales, all, _mm512_mul_ps(minima, _mm512_set1_ps(query.sum)));
      const __m512 before = g == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(scores[h]);
      _mm512_storeu_ps(scores[h], _mm512_fmadd_ps(whole, _mm512_set1_ps(query.step), before));
    }
  }
}

namespace {

// sums[h] += the sum over 16 rows of weights[h][row] times the codes of one group. A vector's lanes
// have the nibbles of the eight words at two shifts; a permutation makes floats of them, whatever
// else is in the lane.
template <size_t kHeads>
inline void sum_group(const std::byte* group, size_t row_bytes, const float* weights,
                      float* const* sums) {
  constexpr size_t kVectors = kQ4Group / 16;
  const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
  const __m512 floats = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512 out[kHeads][kVectors];
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t h = 0; h < kHeads; ++h) {
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t i = 0; i < kVectors; ++i) out[h][i] = _mm512_loadu_ps(sums[h] + 16 * i);
  }
  SPILLWAY_UNROLL_TIMES(2)
  for (size_t r = 0; r < kRows; ++r) {
    const __m512i twice = _mm512_maskz_broadcast_i64x4(0xff, load_words(group + r * row_bytes));
    __m512i words = _mm512_maskz_srlv_epi32(kAll, twice, shifts);
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t i = 0; i < kVectors; ++i) {
      const __m512 codes = _mm512_maskz_permutexvar_ps(kAll, words, floats);
      words = _mm512_maskz_srli_epi32(kAll, words, 8);
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t h = 0; h < kHeads; ++h) {
        out[h][i] = _mm512_fmadd_ps(codes, _mm512_set1_ps(weights[h * kRows + r]), out[h][i]);
      }
    }
  }
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t h = 0; h < kHeads; ++h) {
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t i = 0; i < kVectors; ++i) _mm512_storeu_ps(sums[h] + 16 * i, out[h][i]);
  }
}

template <size_t kHeads>
void sum_heads(const std::byte* run, size_t groups, const RunScales& run_scales, __mmask16 there,
               const float* const* weights, float* const* sums, float* const* minima) {
  for (size_t g = 0; g < groups; ++g) {
    // What lies in rows that are not in use may be NaN.
    const __m512 scale = _mm512_maskz_mov_ps(there, run_scales.scales(g));
    const __m512 minimum = _mm512_maskz_mov_ps(there, run_scales.minima(g));
    alignas(64) float scaled[kHeads * kRows];
    float* to[kHeads];
    for (size_t h = 0; h < kHeads; ++h) {
      const __m512 weight = _mm512_maskz_loadu_ps(there, weights[h]);
      _mm512_store_ps(scaled + h * kRows, _mm512_mul_ps(weight, scale));
      float* const at = minima[h] + g * kRows;
      _mm512_storeu_ps(at, _mm512_fmadd_ps(weight, minimum, _mm512_loadu_ps(at)));
      to[h] = sums[h] + g * kQ4Group;
    }
    sum_group<kHeads>(run + g * kGroupBytes, groups * kGroupBytes, scaled, to);
  }
}

}  // namespace

void sum_q4_run(const std::byte* run, size_t size, size_t rows, size_t heads,
                const float* const* weights, float* const* sums, float* const* minima) {
  const size_t groups = size / kQ4Group;
  const RunScales scales(run, groups);
  const auto there = static_cast<__mmask16>((1u << rows) - 1);
  size_t h = 0;
  for (; h + 4 <= heads; h += 4) {
    sum_heads<4>(run, groups, scales, there, weights + h, sums + h, minima + h);
  }
  for (; h + 2 <= heads; h += 2) {
    sum_heads<2>(run, groups, scales, there, weights + h, sums + h, minima + h);
  }
  if (h < heads) sum_heads<1>(run, groups, scales, there, weights + h, sums + h, minima + h);
}

void add_q4_minima(const float* minima, size_t size, float* sums) {
  for (size_t g = 0; g < size / kQ4Group; ++g) {
    const __m512 sum = _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_loadu_ps(minima + g * kRows)));
    for (size_t i = g * kQ4Group; i < (g + 1) * kQ4Group; i += 16) {
      _mm512_storeu_ps(sums + i, _mm512_add_ps(_mm512_loadu_ps(sums + i), sum));
    }
  }
}

}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES

#else

namespace spillway::cpu {

bool attends_packed_q4(int64_t) {
  return false;
}
void round_q4_query(const float*, size_t, Q4QueryGroup*) {
  SPILLWAY_CHECK(false);
}
void dot_q4_run(const std::byte*, size_t, size_t, const Q4QueryGroup* const*, float* const*) {
  SPILLWAY_CHECK(false);
}
void sum_q4_run(const std::byte*, size_t, size_t, size_t, const float* const*, float* const*,
                float* const*) {
  SPILLWAY_CHECK(false);
}
void add_q4_minima(const float*, size_t, float*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
