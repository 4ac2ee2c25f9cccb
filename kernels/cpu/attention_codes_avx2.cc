// Decode steps over 4-bit and 8-bit rows of the cache by AVX2. Codes are widened to 16 bits once
// for all query heads that share them, and multiplied by queries and weights of 16 bits.
#include "kernels/cpu/attention_codes.h"

#include "kernels/base/check.h"
#include "kernels/kv_layout.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/quantized.h"
#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/unroll.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")

namespace spillway::cpu {

namespace {

constexpr size_t kRunRows = kKvBlockRows;
static_assert(kRunRows == 16);
constexpr size_t kWide = 16;                    // Numbers of 16 bits in a vector
constexpr size_t kParts = kCodesGroup / kWide;  // Vectors of a group's codes
constexpr size_t kSums = 2 * kParts;            // Vectors of a group's sums
constexpr size_t kPairs = kRunRows / 2;         // Of rows
constexpr float kTop = 32600.0f;                // Of integers
constexpr float kLeast = 1e-30f;                // Less counts as 0.
static_assert(sizeof(CodesQueryGroup::planes) == kCodesGroup * sizeof(int16_t));

// Codes of 4 bits: number 8 f + w of a group is in bits 4 f of word w.
struct Q4 {
  static constexpr size_t kGroupBytes = QuantTraits<Format::kQ4>::kGroupBytes;
  static size_t row_bytes(size_t groups) { return groups * kGroupBytes; }
  static const std::byte* codes(const std::byte* row, size_t group) {
    return row + group * kGroupBytes + sizeof(GroupScale);
  }
  // Of lane `lane` of part `part`, which has the nibbles `part` of each half of a word.
  static size_t number(size_t part, size_t lane) { return (lane % 2 * 4 + part) * 8 + lane / 2; }
  static void load(const std::byte* codes, __m256i* parts) {
    const __m256i nibble = _mm256_set1_epi16(15);
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    parts[0] = _mm256_and_si256(halves, nibble);
    parts[1] = _mm256_and_si256(_mm256_srli_epi16(halves, 4), nibble);
    parts[2] = _mm256_and_si256(_mm256_srli_epi16(halves, 8), nibble);
    parts[3] = _mm256_srli_epi16(halves, 12);
  }
};

// Codes of 8 bits, in order behind the row's scale.
struct Q8 {
  static constexpr size_t kGroupBytes = kCodesGroup;
  static size_t row_bytes(size_t groups) { return sizeof(float) + groups * kGroupBytes; }
  static const std::byte* codes(const std::byte* row, size_t group) {
    return row + sizeof(float) + group * kGroupBytes;
  }
  static size_t number(size_t part, size_t lane) { return part * kWide + lane; }
  static void load(const std::byte* codes, __m256i* parts) {
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t i = 0; i < kParts; ++i) {
      const auto* at = reinterpret_cast<const __m128i*>(codes + kWide * i);
      parts[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128(at));
    }
  }
};

float largest_of(__m256 v) {
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_shuffle_ps(most, most, 1)));
}

// Whether some lane times 0 was not 0: NaN or an infinity.
bool damaged(__m256 times_zero) {
  return _mm256_movemask_ps(_mm256_cmp_ps(times_zero, _mm256_setzero_ps(), _CMP_NEQ_UQ)) != 0;
}

// Numbers as step * integer.
struct Rounding {
  float step, factor;
  Rounding(float most, bool is_damaged) {
    const bool counts = !is_damaged && most > kLeast;
    factor = counts ? kTop / most : 0.0f;
    step = is_damaged ? NAN : counts ? most / kTop : 0.0f;
  }
};

template <class Codes>
void round_query(const float* q, size_t size, CodesQueryGroup* groups) {
  const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  for (size_t first = 0; first < size; first += kCodesGroup, ++groups) {
    __m256 largest = _mm256_setzero_ps(), zero = _mm256_setzero_ps();
    for (size_t i = 0; i < kCodesGroup; i += 8) {
      const __m256 some = _mm256_loadu_ps(q + first + i);
      largest = _mm256_max_ps(largest, _mm256_and_ps(some, no_sign));
      zero = _mm256_fmadd_ps(some, _mm256_setzero_ps(), zero);
    }
    const Rounding rounding(largest_of(largest), damaged(zero));
    alignas(32) int32_t integers[kCodesGroup] = {};
    int32_t sum = 0;
    if (rounding.factor > 0) {
      const __m256 factor = _mm256_set1_ps(rounding.factor);
      for (size_t i = 0; i < kCodesGroup; i += 8) {
        const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(q + first + i), factor);
        _mm256_store_si256(reinterpret_cast<__m256i*>(integers + i), _mm256_cvtps_epi32(scaled));
      }
    }
    int16_t ordered[kCodesGroup];
    for (size_t part = 0; part < kParts; ++part) {
      for (size_t lane = 0; lane < kWide; ++lane) {
        const int32_t one = integers[Codes::number(part, lane)];
        ordered[part * kWide + lane] = static_cast<int16_t>(one);
        sum += one;
      }
    }
    std::memcpy(groups->planes, ordered, sizeof(ordered));
    groups->step = rounding.step;
    groups->sum = sum;
  }
}

// Sums of the lanes of eight vectors.
__m256i sums_of_lanes(const __m256i* v) {
  const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
  const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                          _mm256_permute2x128_si256(a, b, 0x31));
}

// A query's integers times those of eight rows: parts_at(r, parts) gives those of row r.
template <class PartsAt>
inline __m256i dot_rows(const CodesQueryGroup& query, const PartsAt& parts_at) {
  const auto* planes = reinterpret_cast<const __m256i*>(query.planes);
  __m256i q[kParts], sums[8];
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t i = 0; i < kParts; ++i) q[i] = _mm256_loadu_si256(planes + i);
  SPILLWAY_UNROLL_TIMES(8)
  for (size_t r = 0; r < 8; ++r) {
    __m256i parts[kParts];
    parts_at(r, parts);
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t i = 0; i < kParts; ++i) parts[i] = _mm256_madd_epi16(parts[i], q[i]);
    sums[r] = _mm256_add_epi32(_mm256_add_epi32(parts[0], parts[1]),
                               _mm256_add_epi32(parts[2], parts[3]));
  }
  return sums_of_lanes(sums);
}

// Calls use(first row, query head, vector of eight rows' sums of integers) of a group of a run. For
// several heads the codes of eight rows are widened once; they find them in the first-level cache.
template <class Codes, class Use>
inline void dot_group(const std::byte* run, const std::byte* ahead, size_t groups, size_t group,
                      size_t heads, const CodesQueryGroup* const* queries, const Use& use) {
  const size_t row_bytes = Codes::row_bytes(groups);
  alignas(32) int16_t widened[8][kCodesGroup];
  for (size_t first = 0; first < kRunRows; first += 8) {
    const auto widen = [&](size_t r, __m256i* parts) {
      const size_t row = first + r;
      __builtin_prefetch(ahead + (group * kRunRows + row) * Codes::kGroupBytes, 0, 3);
      Codes::load(Codes::codes(run + row * row_bytes, group), parts);
    };
    if (heads == 1) {
      use(first, 0, dot_rows(queries[0][group], widen));
      continue;
    }
    SPILLWAY_UNROLL_TIMES(1)
    for (size_t r = 0; r < 8; ++r) {
      __m256i parts[kParts];
      widen(r, parts);
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t i = 0; i < kParts; ++i) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(widened[r] + kWide * i), parts[i]);
      }
    }
    const auto load = [&](size_t r, __m256i* parts) {
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t i = 0; i < kParts; ++i) {
        parts[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(widened[r] + kWide * i));
      }
    };
    for (size_t h = 0; h < heads; ++h) use(first, h, dot_rows(queries[h][group], load));
  }
}

// Weights >= 0 of a run's rows as step * integer; pairs[p]: the integers of rows 2 p and 2 p + 1.
struct RunWeights {
  alignas(32) int32_t pairs[kPairs];
  float step;

  void round(__m256 low, __m256 high) {
    const __m256 zero = _mm256_setzero_ps();
    const __m256 times_zero = _mm256_fmadd_ps(low, zero, _mm256_mul_ps(high, zero));
    const Rounding rounding(largest_of(_mm256_max_ps(low, high)), damaged(times_zero));
    step = rounding.step;
    __m256i integers = _mm256_setzero_si256();
    if (rounding.factor > 0) {
      const __m256 factor = _mm256_set1_ps(rounding.factor);
      const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(low, factor));
      const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(high, factor));
      integers = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), integers);
  }
};

// Rows 2 p and 2 p + 1 of a group of a run side by side: their parts i in pairs[2 i] and [2 i + 1].
template <class Codes>
inline void pair_rows(const std::byte* run, const std::byte* ahead, size_t groups, size_t group,
                      size_t p, __m256i* pairs) {
  const size_t row_bytes = Codes::row_bytes(groups);
  const std::byte* const row = run + 2 * p * row_bytes;
  const std::byte* const next = ahead + (group * kRunRows + 2 * p) * Codes::kGroupBytes;
  __builtin_prefetch(next, 0, 3);
  __builtin_prefetch(next + Codes::kGroupBytes, 0, 3);
  __m256i one[kParts], other[kParts];
  Codes::load(Codes::codes(row, group), one);
  Codes::load(Codes::codes(row + row_bytes, group), other);
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t i = 0; i < kParts; ++i) {
    pairs[2 * i] = _mm256_unpacklo_epi16(one[i], other[i]);
    pairs[2 * i + 1] = _mm256_unpackhi_epi16(one[i], other[i]);
  }
}

// sums[8 i + lane] += the weighted sums of a group's rows, in the order of pair_rows():
// pairs_at(p, pairs) gives its pairs.
template <class PairsAt>
inline void add_pairs(const PairsAt& pairs_at, const RunWeights& weights, float* sums) {
  __m256i all[kSums];
  SPILLWAY_UNROLL_TIMES(8)
  for (size_t i = 0; i < kSums; ++i) all[i] = _mm256_setzero_si256();
  // As a loop, whose sums stay in registers.
  SPILLWAY_UNROLL_TIMES(1)
  for (size_t p = 0; p < kPairs; ++p) {
    const __m256i two = _mm256_set1_epi32(weights.pairs[p]);
    __m256i pairs[kSums];
    pairs_at(p, pairs);
    SPILLWAY_UNROLL_TIMES(8)
    for (size_t i = 0; i < kSums; ++i) {
      all[i] = _mm256_add_epi32(all[i], _mm256_madd_epi16(pairs[i], two));
    }
  }
  const __m256 step = _mm256_set1_ps(weights.step);
  SPILLWAY_UNROLL_TIMES(8)
  for (size_t i = 0; i < kSums; ++i) {
    const __m256 before = _mm256_loadu_ps(sums + 8 * i);
    _mm256_storeu_ps(sums + 8 * i, _mm256_fmadd_ps(_mm256_cvtepi32_ps(all[i]), step, before));
  }
}

// add_pairs() of a group and all heads, of which weights_of(h) gives the weights.
template <class Codes, class WeightsOf>
inline void sum_group(const std::byte* run, const std::byte* ahead, size_t groups, size_t group,
                      size_t heads, const WeightsOf& weights_of, float* const* sums) {
  const auto widen = [&](size_t p, __m256i* pairs) {
    pair_rows<Codes>(run, ahead, groups, group, p, pairs);
  };
  const size_t at = group * kCodesGroup;
  if (heads == 1) return add_pairs(widen, weights_of(0), sums[0] + at);
  __m256i paired[kPairs][kSums];
  SPILLWAY_UNROLL_TIMES(1)
  for (size_t p = 0; p < kPairs; ++p) widen(p, paired[p]);
  const auto load = [&](size_t p, __m256i* pairs) {
    SPILLWAY_UNROLL_TIMES(8)
    for (size_t i = 0; i < kSums; ++i) pairs[i] = paired[p][i];
  };
  for (size_t h = 0; h < heads; ++h) add_pairs(load, weights_of(h), sums[h] + at);
}

// Of a group's sums: those that add_pairs() leaves, in the order of the numbers.
template <class Codes>
void order(float* sums) {
  float ordered[kCodesGroup];
  for (size_t i = 0; i < kCodesGroup; ++i) {
    // Which part, and where in it: the halves of vectors are unpacked by themselves.
    const size_t vector = i / 8, lane = i % 8;
    ordered[Codes::number(vector / 2, lane / 4 * 8 + vector % 2 * 4 + lane % 4)] = sums[i];
  }
  std::copy_n(ordered, kCodesGroup, sums);
}

// Of all rows those that are there, as vectors of eight: what lies in others may be NaN.
struct RowMask {
  __m256 low, high;
  explicit RowMask(size_t rows) {
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const auto count = static_cast<int>(rows);
    low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), numbers));
    high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), numbers));
  }
};

// Scales and minima of eight rows of a group.
struct EightScales {
  __m256 scales, minima;
  EightScales(const std::byte* group, size_t row_bytes) {
    alignas(32) uint32_t both[8];
    for (size_t r = 0; r < 8; ++r) std::memcpy(both + r, group + r * row_bytes, sizeof(uint32_t));
    const __m256i all = _mm256_load_si256(reinterpret_cast<const __m256i*>(both));
    const __m256i low = _mm256_and_si256(all, _mm256_set1_epi32(0xffff));
    const __m256i packed =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(low, _mm256_srli_epi32(all, 16)), 0xd8);
    scales = _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
    minima = _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1));
  }
};

// Scales of eight rows of 8 bits.
inline __m256 eight_scales(const std::byte* row, size_t row_bytes) {
  alignas(32) float scales[8];
  for (size_t r = 0; r < 8; ++r) std::memcpy(scales + r, row + r * row_bytes, sizeof(float));
  return _mm256_load_ps(scales);
}

void round_q4_query(const float* q, size_t size, CodesQueryGroup* groups) {
  round_query<Q4>(q, size, groups);
}

void dot_q4_run(const std::byte* run, const std::byte* ahead, size_t size, size_t heads,
                const CodesQueryGroup* const* queries, float* const* scores) {
  const size_t groups = size / kCodesGroup, row_bytes = Q4::row_bytes(groups);
  for (size_t g = 0; g < groups; ++g) {
    const std::byte* const group = run + g * Q4::kGroupBytes;
    const EightScales shared[2] = {{group, row_bytes}, {group + 8 * row_bytes, row_bytes}};
    dot_group<Q4>(run, ahead, groups, g, heads, queries, [&](size_t first, size_t h, __m256i sums) {
      const CodesQueryGroup& query = queries[h][g];
      const EightScales& of = shared[first / 8];
      const __m256 lowest = _mm256_mul_ps(of.minima, _mm256_set1_ps(static_cast<float>(query.sum)));
      const __m256 whole = _mm256_fmadd_ps(of.scales, _mm256_cvtepi32_ps(sums), lowest);
      float* const at = scores[h] + first;
      const __m256 before = g == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(at);
      _mm256_storeu_ps(at, _mm256_fmadd_ps(whole, _mm256_set1_ps(query.step), before));
    });
  }
}

void sum_q4_run(const std::byte* run, const std::byte* ahead, size_t size, size_t rows,
                size_t heads, const float* const* weights, float* const* sums,
                float* const* minima) {
  const size_t groups = size / kCodesGroup, row_bytes = Q4::row_bytes(groups);
  const RowMask there(rows);
  for (size_t g = 0; g < groups; ++g) {
    const std::byte* const group = run + g * Q4::kGroupBytes;
    const EightScales low(group, row_bytes), high(group + 8 * row_bytes, row_bytes);
    const auto weights_of = [&](size_t h) {
      const __m256 some[2] = {_mm256_and_ps(_mm256_loadu_ps(weights[h]), there.low),
                              _mm256_and_ps(_mm256_loadu_ps(weights[h] + 8), there.high)};
      float* const at = minima[h] + g * kRunRows;
      const __m256 lowest[2] = {_mm256_and_ps(low.minima, there.low),
                                _mm256_and_ps(high.minima, there.high)};
      for (size_t i = 0; i < 2; ++i) {
        const __m256 before = _mm256_loadu_ps(at + 8 * i);
        _mm256_storeu_ps(at + 8 * i, _mm256_fmadd_ps(some[i], lowest[i], before));
      }
      RunWeights rounded;
      rounded.round(_mm256_mul_ps(some[0], _mm256_and_ps(low.scales, there.low)),
                    _mm256_mul_ps(some[1], _mm256_and_ps(high.scales, there.high)));
      return rounded;
    };
    sum_group<Q4>(run, ahead, groups, g, heads, weights_of, sums);
  }
}

void finish_q4_sums(const float* minima, size_t size, float* sums) {
  for (size_t g = 0; g < size / kCodesGroup; ++g) {
    float* const group = sums + g * kCodesGroup;
    order<Q4>(group);
    float lowest = 0;
    for (size_t r = 0; r < kRunRows; ++r) lowest += minima[g * kRunRows + r];
    for (size_t i = 0; i < kCodesGroup; ++i) group[i] += lowest;
  }
}

void round_q8_query(const float* q, size_t size, CodesQueryGroup* groups) {
  round_query<Q8>(q, size, groups);
}

void dot_q8_run(const std::byte* run, const std::byte* ahead, size_t size, size_t heads,
                const CodesQueryGroup* const* queries, float* const* scores) {
  const size_t groups = size / kCodesGroup, row_bytes = Q8::row_bytes(groups);
  const __m256 scales[2] = {eight_scales(run, row_bytes),
                            eight_scales(run + 8 * row_bytes, row_bytes)};
  __builtin_prefetch(ahead + kRunRows * size, 0, 3);  // The last line
  for (size_t g = 0; g < groups; ++g) {
    dot_group<Q8>(run, ahead, groups, g, heads, queries, [&](size_t first, size_t h, __m256i sums) {
      float* const at = scores[h] + first;
      const __m256 before = g == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(at);
      const __m256 sum =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(queries[h][g].step), before);
      _mm256_storeu_ps(at, g + 1 < groups ? sum : _mm256_mul_ps(sum, scales[first / 8]));
    });
  }
}

void sum_q8_run(const std::byte* run, const std::byte* ahead, size_t size, size_t rows,
                size_t heads, const float* const* weights, float* const* sums) {
  SPILLWAY_CHECK(heads <= kStepHeadsMax);
  const size_t groups = size / kCodesGroup, row_bytes = Q8::row_bytes(groups);
  const RowMask there(rows);
  const __m256 low = _mm256_and_ps(eight_scales(run, row_bytes), there.low);
  const __m256 high = _mm256_and_ps(eight_scales(run + 8 * row_bytes, row_bytes), there.high);
  __builtin_prefetch(ahead + kRunRows * size, 0, 3);
  RunWeights rounded[kStepHeadsMax];
  for (size_t h = 0; h < heads; ++h) {
    rounded[h].round(
        _mm256_mul_ps(_mm256_and_ps(_mm256_loadu_ps(weights[h]), there.low), low),
        _mm256_mul_ps(_mm256_and_ps(_mm256_loadu_ps(weights[h] + 8), there.high), high));
  }
  for (size_t g = 0; g < groups; ++g) {
    const auto weights_of = [&](size_t h) -> const RunWeights& { return rounded[h]; };
    sum_group<Q8>(run, ahead, groups, g, heads, weights_of, sums);
  }
}

void order_q8_sums(size_t size, float* sums) {
  for (size_t first = 0; first < size; first += kCodesGroup) order<Q8>(sums + first);
}

}  // namespace

const Q4Steps kQ4Avx2 = {{&round_q4_query, &dot_q4_run}, &sum_q4_run, &finish_q4_sums};
const Q8Steps kQ8Avx2 = {{&round_q8_query, &dot_q8_run}, &sum_q8_run, &order_q8_sums};

}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES

#endif
