// Decode steps over 4-bit and 8-bit rows of the cache by AVX2. Codes are widened to 16 bits once
// for up to four query heads that share them, and multiplied by queries and weights of 16 bits.
#include "kernels/cpu/attention_codes.h"

#include "kernels/kv_layout.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/base/quantized.h"
#include "kernels/cpu/unroll.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")

namespace spillway::cpu {

namespace {

constexpr size_t kRunRows = kKvBlockRows;
static_assert(kRunRows == 16);
constexpr size_t kWide = 16;                    // Numbers of 16 bits in a vector
constexpr size_t kParts = kCodesGroup / kWide;  // Vectors of a group's codes
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
  static __m256i load(const std::byte* codes, size_t part) {
    const __m256i nibble = _mm256_set1_epi16(15);
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    if (part == 0) return _mm256_and_si256(halves, nibble);
    if (part == 3) return _mm256_srli_epi16(halves, 12);
    return _mm256_and_si256(_mm256_srli_epi16(halves, static_cast<int>(4 * part)), nibble);
  }
  // A query's integers as load() has the codes that they are multiplied by: part `part` has numbers
  // 8 part + w in even lanes and 8 (4 + part) + w in odd ones.
  static __m256i order_query(const __m256i* integers, size_t part) {
    return _mm256_blend_epi16(integers[part], _mm256_slli_epi32(integers[kParts + part], 16), 0xaa);
  }
  // Puts the sums of a part's numbers, unpacked by halves of 128 bits, where the numbers are.
  static void order_sums(__m256 low, __m256 high, size_t part, float* group) {
    _mm256_storeu_ps(group + 8 * part, _mm256_shuffle_ps(low, high, 0x88));
    _mm256_storeu_ps(group + 8 * (kParts + part), _mm256_shuffle_ps(low, high, 0xdd));
  }
};

// Codes of 8 bits, in order behind the row's scale.
struct Q8 {
  static constexpr size_t kGroupBytes = kCodesGroup;
  static size_t row_bytes(size_t groups) { return sizeof(float) + groups * kGroupBytes; }
  static const std::byte* codes(const std::byte* row, size_t group) {
    return row + sizeof(float) + group * kGroupBytes;
  }
  static __m256i load(const std::byte* codes, size_t part) {
    const auto* at = reinterpret_cast<const __m128i*>(codes + kWide * part);
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(at));
  }
  static __m256i order_query(const __m256i* integers, size_t part) {
    const __m256i both = _mm256_packs_epi32(integers[2 * part], integers[2 * part + 1]);
    return _mm256_permute4x64_epi64(both, 0xd8);
  }
  static void order_sums(__m256 low, __m256 high, size_t part, float* group) {
    _mm256_storeu_ps(group + kWide * part, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(group + kWide * part + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
};

float largest_of(__m256 v) {
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_shuffle_ps(most, most, 1)));
}

inline int32_t sum_of_lanes(__m256i v) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
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
    const __m256 factor = _mm256_set1_ps(rounding.factor);
    __m256i integers[kCodesGroup / 8], sum = _mm256_setzero_si256();
    SPILLWAY_UNROLL_TIMES(8)
    for (size_t i = 0; i < kCodesGroup / 8; ++i) {
      // NaN and infinities times 0 become integers, too, which their step makes NaN again.
      const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(q + first + 8 * i), factor);
      integers[i] = _mm256_cvtps_epi32(scaled);
      sum = _mm256_add_epi32(sum, integers[i]);
    }
    auto* const planes = reinterpret_cast<__m256i*>(groups->planes);
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t part = 0; part < kParts; ++part) {
      _mm256_storeu_si256(planes + part, Codes::order_query(integers, part));
    }
    groups->step = rounding.step;
    groups->sum = sum_of_lanes(sum);
  }
}

// Adds the halves of two vectors' blocks of four lanes. A blend takes ports that shuffles do not.
inline __m256i add_halves(__m256i a, __m256i b) {
  return _mm256_add_epi32(_mm256_blend_epi32(a, b, 0xcc), _mm256_alignr_epi8(b, a, 8));
}

// Sums of the lanes of eight vectors.
inline __m256i sums_of_lanes(const __m256i* v) {
  const __m256i a = _mm256_hadd_epi32(add_halves(v[0], v[1]), add_halves(v[2], v[3]));
  const __m256i b = _mm256_hadd_epi32(add_halves(v[4], v[5]), add_halves(v[6], v[7]));
  return _mm256_add_epi32(_mm256_blend_epi32(a, b, 0xf0), _mm256_permute2x128_si256(a, b, 0x21));
}

// sum += products of pairs of 16 bits. In assembly, so that what several products share is loaded
// once and sums stay in registers, which g++ 12 makes of intrinsics only now and then.
inline void add_products(__m256i& sum, __m256i a, __m256i b) {
  __m256i products;
  asm volatile("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0"
               : "+x"(sum), "=&x"(products)
               : "x"(a), "x"(b));
}

// Calls use(number of heads as a constant, first head) until it is through with `heads`: as many
// together as there are registers for, and never one of several alone.
template <class Use>
inline void for_heads_together(size_t heads, const Use& use) {
  size_t h = 0;
  for (; heads - h >= 4 && heads - h != 5; h += 4) use(std::integral_constant<size_t, 4>(), h);
  for (; heads - h >= 3; h += 3) use(std::integral_constant<size_t, 3>(), h);
  for (; heads - h >= 2; h += 2) use(std::integral_constant<size_t, 2>(), h);
  for (; heads - h >= 1; ++h) use(std::integral_constant<size_t, 1>(), h);
}

// A query's integers times those of eight rows of a group from `codes` on.
template <class Codes>
inline __m256i dot_eight(const std::byte* codes, size_t row_bytes, const std::byte* ahead,
                         const CodesQueryGroup& query) {
  const auto* planes = reinterpret_cast<const __m256i*>(query.planes);
  __m256i q[kParts], sums[8];
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t i = 0; i < kParts; ++i) q[i] = _mm256_loadu_si256(planes + i);
  SPILLWAY_UNROLL_TIMES(8)
  for (size_t r = 0; r < 8; ++r) {
    __builtin_prefetch(ahead + r * Codes::kGroupBytes, 0, 3);
    __m256i parts[kParts];
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t i = 0; i < kParts; ++i) {
      parts[i] = _mm256_madd_epi16(Codes::load(codes + r * row_bytes, i), q[i]);
    }
    sums[r] = _mm256_add_epi32(_mm256_add_epi32(parts[0], parts[1]),
                               _mm256_add_epi32(parts[2], parts[3]));
  }
  return sums_of_lanes(sums);
}

// Integers of several queries, which share what is loaded and widened of a row, times those of a
// group of a run's rows: found[h][0] and [1], the sums of rows 0 to 7 and 8 to 15.
template <class Codes, size_t kHeads>
[[gnu::noinline]] void dot_tile(const std::byte* codes, size_t row_bytes, const std::byte* ahead,
                                size_t group, const CodesQueryGroup* const* queries,
                                __m256i (*found)[2]) {
  constexpr size_t kRows = kHeads >= 3 ? 2 : 4;  // At once
  const __m256i* planes[kHeads];
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t h = 0; h < kHeads; ++h) {
    planes[h] = reinterpret_cast<const __m256i*>(queries[h][group].planes);
  }
  __m256i by_lanes[kHeads][kRunRows];
  SPILLWAY_UNROLL_TIMES(1)
  for (size_t r = 0; r < kRunRows; r += kRows) {
    __m256i sums[kHeads][kRows];
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t h = 0; h < kHeads; ++h) {
      asm volatile("" : "+r"(planes[h]));  // Not to be loaded ahead of the loop
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t j = 0; j < kRows; ++j) sums[h][j] = _mm256_setzero_si256();
    }
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t part = 0; part < kParts; ++part) {
      __m256i keys[kRows];
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t j = 0; j < kRows; ++j) {
        if (part % 2 == 0) __builtin_prefetch(ahead + (r + j) * Codes::kGroupBytes, 0, 3);
        keys[j] = Codes::load(codes + (r + j) * row_bytes, part);
      }
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t h = 0; h < kHeads; ++h) {
        const __m256i query = _mm256_loadu_si256(planes[h] + part);
        SPILLWAY_UNROLL_TIMES(4)
        for (size_t j = 0; j < kRows; ++j) add_products(sums[h][j], query, keys[j]);
      }
    }
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t h = 0; h < kHeads; ++h) {
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t j = 0; j < kRows; ++j) by_lanes[h][r + j] = sums[h][j];
    }
  }
  SPILLWAY_UNROLL_TIMES(1)
  for (size_t h = 0; h < kHeads; ++h) {
    found[h][0] = sums_of_lanes(by_lanes[h]);
    found[h][1] = sums_of_lanes(by_lanes[h] + 8);
  }
}

// Calls use(first row, query head, vector of eight rows' sums of integers) of a group of a run.
template <class Codes, class Use>
inline void dot_group(const std::byte* run, const std::byte* ahead, size_t groups, size_t group,
                      size_t heads, const CodesQueryGroup* const* queries, const Use& use) {
  const std::byte* const codes = Codes::codes(run, group);
  const std::byte* const next = ahead + group * kRunRows * Codes::kGroupBytes;
  if (heads == 1) {
    const CodesQueryGroup& query = queries[0][group];
    for (size_t first = 0; first < kRunRows; first += 8) {
      const std::byte* const eight = codes + first * Codes::row_bytes(groups);
      use(first, 0,
          dot_eight<Codes>(eight, Codes::row_bytes(groups), next + first * Codes::kGroupBytes,
                           query));
    }
    return;
  }
  for_heads_together(heads, [&](auto together, size_t first) {
    constexpr size_t kHeads = decltype(together)::value;
    __m256i found[kHeads][2];
    dot_tile<Codes, kHeads>(codes, Codes::row_bytes(groups), next, group, queries + first, found);
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t h = 0; h < kHeads; ++h) {
      use(0, first + h, found[h][0]);
      use(8, first + h, found[h][1]);
    }
  });
}

// Weights >= 0 of a run's rows as step * integer; pairs[p]: the integers of rows 2 p and 2 p + 1.
struct RunWeights {
  alignas(32) int32_t pairs[kPairs];
  float step;
};

// Of two vectors the larger lanes, as integers: so are bits of numbers >= 0 ordered, and those of
// infinities and NaN are the largest.
inline __m256i larger(__m256i a, __m256i b) {
  return _mm256_max_epi32(a, b);
}

// Rounds the weights of kHeads <= 4 heads, without their signs, [0] those of rows 0 to 7: four
// heads' largest are found and divided by at once.
template <size_t kHeads>
inline void round_weights(const __m256 (*weights)[2], RunWeights* rounded) {
  __m256i most[4];
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t h = 0; h < 4; ++h) {
    most[h] = h < kHeads
                  ? larger(_mm256_castps_si256(weights[h][0]), _mm256_castps_si256(weights[h][1]))
                  : _mm256_setzero_si256();
  }
  const __m256i a =
      larger(_mm256_unpacklo_epi32(most[0], most[1]), _mm256_unpackhi_epi32(most[0], most[1]));
  const __m256i b =
      larger(_mm256_unpacklo_epi32(most[2], most[3]), _mm256_unpackhi_epi32(most[2], most[3]));
  const __m256i c = larger(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  const __m128i bits = _mm_max_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
  const __m128 of_heads = _mm_castsi128_ps(bits), top = _mm_set1_ps(kTop);
  const __m128 damaged = _mm_castsi128_ps(_mm_cmpgt_epi32(bits, _mm_set1_epi32(0x7f7fffff)));
  const __m128 counts = _mm_andnot_ps(damaged, _mm_cmpgt_ps(of_heads, _mm_set1_ps(kLeast)));
  alignas(16) float factors[4], steps[4];
  _mm_store_ps(factors, _mm_and_ps(counts, _mm_div_ps(top, of_heads)));
  _mm_store_ps(steps, _mm_blendv_ps(_mm_and_ps(counts, _mm_div_ps(of_heads, top)), _mm_set1_ps(NAN),
                                    damaged));
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t h = 0; h < kHeads; ++h) {
    const __m256 factor = _mm256_set1_ps(factors[h]);
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(weights[h][0], factor));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(weights[h][1], factor));
    const __m256i integers = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    _mm256_store_si256(reinterpret_cast<__m256i*>(rounded[h].pairs), integers);
    rounded[h].step = steps[h];
  }
}

// sums[h][8 i + lane] += the weighted sums of a group of a run's rows. Part i of two rows, unpacked
// to pairs of numbers of one column, makes the vectors 2 i and 2 i + 1.
template <class Codes, size_t kHeads>
[[gnu::noinline]] void sum_tile(const std::byte* codes, size_t row_bytes, const std::byte* ahead,
                                const RunWeights* weights, float* const* sums) {
  constexpr size_t kAtOnce = kHeads == 1 ? 4 : kHeads == 2 ? 2 : 1;  // Parts: eight sums at most
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t first = 0; first < kParts; first += kAtOnce) {
    __m256i all[kHeads][2 * kAtOnce];
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t h = 0; h < kHeads; ++h) {
      SPILLWAY_UNROLL_TIMES(8)
      for (size_t i = 0; i < 2 * kAtOnce; ++i) all[h][i] = _mm256_setzero_si256();
    }
    // As a loop, whose sums stay in registers.
    SPILLWAY_UNROLL_TIMES(1)
    for (size_t p = 0; p < kPairs; ++p) {
      const std::byte* const next = ahead + 2 * p * Codes::kGroupBytes;
      __builtin_prefetch(next, 0, 3);
      __builtin_prefetch(next + Codes::kGroupBytes, 0, 3);
      const std::byte* const row = codes + 2 * p * row_bytes;
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t i = 0; i < kAtOnce; ++i) {
        const __m256i one = Codes::load(row, first + i);
        const __m256i other = Codes::load(row + row_bytes, first + i);
        const __m256i low = _mm256_unpacklo_epi16(one, other);
        const __m256i high = _mm256_unpackhi_epi16(one, other);
        SPILLWAY_UNROLL_TIMES(4)
        for (size_t h = 0; h < kHeads; ++h) {
          const __m256i two = _mm256_set1_epi32(weights[h].pairs[p]);
          add_products(all[h][2 * i], low, two);
          add_products(all[h][2 * i + 1], high, two);
        }
      }
    }
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t h = 0; h < kHeads; ++h) {
      const __m256 step = _mm256_set1_ps(weights[h].step);
      SPILLWAY_UNROLL_TIMES(8)
      for (size_t i = 0; i < 2 * kAtOnce; ++i) {
        float* const at = sums[h] + kWide * first + 8 * i;
        const __m256 before = _mm256_loadu_ps(at);
        _mm256_storeu_ps(at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(all[h][i]), step, before));
      }
    }
  }
}

// Of a group's sums: those that sum_tile() leaves, in the order of the numbers.
template <class Codes>
void order(float* sums) {
  __m256 found[2 * kParts];
  for (size_t i = 0; i < 2 * kParts; ++i) found[i] = _mm256_loadu_ps(sums + 8 * i);
  for (size_t i = 0; i < kParts; ++i) Codes::order_sums(found[2 * i], found[2 * i + 1], i, sums);
}

// The rows that are there, eight a vector: what lies in others may be NaN.
class RowMask {
 public:
  explicit RowMask(size_t rows) {
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int half = 0; half < 2; ++half) {
      const __m256i count = _mm256_set1_epi32(static_cast<int>(rows) - 8 * half);
      const __m256i there = _mm256_cmpgt_epi32(count, numbers);
      there_[half] = _mm256_castsi256_ps(there);
      no_sign_[half] = _mm256_castsi256_ps(_mm256_srli_epi32(there, 1));
    }
  }
  // Of rows 0 to 7 or 8 to 15 weight times factor, 0 of rows that are not there.
  __m256 weighted(const float* weights, __m256 factors, size_t half) const {
    return _mm256_and_ps(product(weights, factors, half), there_[half]);
  }
  // The same without signs, which only those of NaN have.
  __m256 magnitudes(const float* weights, __m256 factors, size_t half) const {
    return _mm256_and_ps(product(weights, factors, half), no_sign_[half]);
  }

 private:
  static __m256 product(const float* weights, __m256 factors, size_t half) {
    return _mm256_mul_ps(_mm256_loadu_ps(weights + 8 * half), factors);
  }
  __m256 there_[2], no_sign_[2];
};

template <class T>
inline T load_number(const std::byte* from) {
  T number;
  std::memcpy(&number, from, sizeof(number));
  return number;
}

// Scales and minima of eight rows of a group.
struct EightScales {
  __m256 scales, minima;
  EightScales(const std::byte* group, size_t row_bytes) {
    const auto of_row = [&](size_t r) { return load_number<int32_t>(group + r * row_bytes); };
    const __m256i all = _mm256_setr_epi32(of_row(0), of_row(1), of_row(2), of_row(3), of_row(4),
                                          of_row(5), of_row(6), of_row(7));
    const __m256i low = _mm256_and_si256(all, _mm256_set1_epi32(0xffff));
    const __m256i packed =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(low, _mm256_srli_epi32(all, 16)), 0xd8);
    scales = _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
    minima = _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1));
  }
};

// Scales of eight rows of 8 bits.
inline __m256 eight_scales(const std::byte* row, size_t row_bytes) {
  const auto of_row = [&](size_t r) { return load_number<float>(row + r * row_bytes); };
  return _mm256_setr_ps(of_row(0), of_row(1), of_row(2), of_row(3), of_row(4), of_row(5), of_row(6),
                        of_row(7));
}

// Calls use(run, what lies ahead, first head) for all runs.
template <class Use>
inline void for_runs(const CodesRuns& runs, size_t run_bytes, const Use& use) {
  for (size_t i = 0; i < runs.count; ++i) {
    use(runs.at + i * run_bytes, runs.ahead + i * run_bytes, i * runs.group);
  }
}

void dot_q4_run(const std::byte* run, const std::byte* ahead, const CodesRuns& of,
                const CodesQueryGroup* const* queries, float* const* scores) {
  const size_t size = of.size, heads = of.group;
  const size_t groups = size / kCodesGroup, row_bytes = Q4::row_bytes(groups);
  for (size_t g = 0; g < groups; ++g) {
    const std::byte* const group = run + g * Q4::kGroupBytes;
    const EightScales shared[2] = {{group, row_bytes}, {group + 8 * row_bytes, row_bytes}};
    dot_group<Q4>(run, ahead, groups, g, heads, queries, [&](size_t first, size_t h, __m256i sums) {
      const CodesQueryGroup& query = queries[h][g];
      const EightScales& eight = shared[first / 8];
      const __m256 sum = _mm256_set1_ps(static_cast<float>(query.sum));
      const __m256 lowest = _mm256_mul_ps(eight.minima, sum);
      const __m256 whole = _mm256_fmadd_ps(eight.scales, _mm256_cvtepi32_ps(sums), lowest);
      float* const at = scores[h] + of.first + first;
      const __m256 before = g == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(at);
      _mm256_storeu_ps(at, _mm256_fmadd_ps(whole, _mm256_set1_ps(query.step), before));
    });
  }
}

void dot_q4_runs(const CodesRuns& runs, const CodesQueryGroup* const* queries,
                 float* const* scores) {
  const size_t run_bytes = kRunRows * Q4::row_bytes(runs.size / kCodesGroup);
  for_runs(runs, run_bytes, [&](const std::byte* run, const std::byte* ahead, size_t head) {
    dot_q4_run(run, ahead, runs, queries + head, scores + head);
  });
}

void sum_q4_run(const std::byte* run, const std::byte* ahead, const CodesRuns& of, size_t rows,
                const float* const* weights, float* const* sums, float* const* minima) {
  const size_t size = of.size, heads = of.group;
  const size_t groups = size / kCodesGroup, row_bytes = Q4::row_bytes(groups);
  const RowMask there(rows);
  for (size_t g = 0; g < groups; ++g) {
    const std::byte* const group = run + g * Q4::kGroupBytes;
    const EightScales shared[2] = {{group, row_bytes}, {group + 8 * row_bytes, row_bytes}};
    for_heads_together(heads, [&](auto together, size_t first) {
      constexpr size_t kHeads = decltype(together)::value;
      __m256 scaled[kHeads][2];
      float* at[kHeads];
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t h = 0; h < kHeads; ++h) {
        at[h] = sums[first + h] + g * kCodesGroup;
        SPILLWAY_UNROLL_TIMES(2)
        for (size_t half = 0; half < 2; ++half) {
          const float* const from = weights[first + h] + of.first;
          scaled[h][half] = there.magnitudes(from, shared[half].scales, half);
          float* const lowest = minima[first + h] + g * kRunRows + 8 * half;
          const __m256 of_rows = there.weighted(from, shared[half].minima, half);
          _mm256_storeu_ps(lowest, _mm256_add_ps(_mm256_loadu_ps(lowest), of_rows));
        }
      }
      RunWeights rounded[kHeads];
      round_weights<kHeads>(scaled, rounded);
      sum_tile<Q4, kHeads>(Q4::codes(run, g), row_bytes, ahead + g * kRunRows * Q4::kGroupBytes,
                           rounded, at);
    });
  }
}

void sum_q4_runs(const CodesRuns& runs, size_t rows, const float* const* weights,
                 float* const* sums, float* const* minima) {
  const size_t run_bytes = kRunRows * Q4::row_bytes(runs.size / kCodesGroup);
  for_runs(runs, run_bytes, [&](const std::byte* run, const std::byte* ahead, size_t head) {
    sum_q4_run(run, ahead, runs, rows, weights + head, sums + head, minima + head);
  });
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

void dot_q8_run(const std::byte* run, const std::byte* ahead, const CodesRuns& of,
                const CodesQueryGroup* const* queries, float* const* scores) {
  const size_t size = of.size, heads = of.group;
  const size_t groups = size / kCodesGroup, row_bytes = Q8::row_bytes(groups);
  __builtin_prefetch(ahead + kRunRows * size, 0, 3);  // The last line
  for (size_t g = 0; g < groups; ++g) {
    dot_group<Q8>(run, ahead, groups, g, heads, queries, [&](size_t first, size_t h, __m256i sums) {
      float* const at = scores[h] + of.first + first;
      const __m256 before = g == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(at);
      const __m256 step = _mm256_set1_ps(queries[h][g].step);
      _mm256_storeu_ps(at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), step, before));
    });
  }
  // Last, when the rows are in the cache: loading all their scales first waits for each row.
  const __m256 scales[2] = {eight_scales(run, row_bytes),
                            eight_scales(run + 8 * row_bytes, row_bytes)};
  for (size_t h = 0; h < heads; ++h) {
    for (size_t half = 0; half < 2; ++half) {
      float* const at = scores[h] + of.first + 8 * half;
      _mm256_storeu_ps(at, _mm256_mul_ps(_mm256_loadu_ps(at), scales[half]));
    }
  }
}

void dot_q8_runs(const CodesRuns& runs, const CodesQueryGroup* const* queries,
                 float* const* scores) {
  const size_t run_bytes = kRunRows * Q8::row_bytes(runs.size / kCodesGroup);
  for_runs(runs, run_bytes, [&](const std::byte* run, const std::byte* ahead, size_t head) {
    dot_q8_run(run, ahead, runs, queries + head, scores + head);
  });
}

void sum_q8_run(const std::byte* run, const std::byte* ahead, const CodesRuns& of, size_t rows,
                const float* const* weights, float* const* sums) {
  const size_t size = of.size, heads = of.group;
  const size_t groups = size / kCodesGroup, row_bytes = Q8::row_bytes(groups);
  const RowMask there(rows);
  const __m256 scales[2] = {eight_scales(run, row_bytes),
                            eight_scales(run + 8 * row_bytes, row_bytes)};
  __builtin_prefetch(ahead + kRunRows * size, 0, 3);
  for_heads_together(heads, [&](auto together, size_t first) {
    constexpr size_t kHeads = decltype(together)::value;
    __m256 scaled[kHeads][2];
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t h = 0; h < kHeads; ++h) {
      SPILLWAY_UNROLL_TIMES(2)
      for (size_t half = 0; half < 2; ++half) {
        scaled[h][half] = there.magnitudes(weights[first + h] + of.first, scales[half], half);
      }
    }
    RunWeights rounded[kHeads];
    round_weights<kHeads>(scaled, rounded);
    for (size_t g = 0; g < groups; ++g) {
      float* at[kHeads];
      for (size_t h = 0; h < kHeads; ++h) at[h] = sums[first + h] + g * kCodesGroup;
      sum_tile<Q8, kHeads>(Q8::codes(run, g), row_bytes, ahead + g * kRunRows * Q8::kGroupBytes,
                           rounded, at);
    }
  });
}

void sum_q8_runs(const CodesRuns& runs, size_t rows, const float* const* weights,
                 float* const* sums) {
  const size_t run_bytes = kRunRows * Q8::row_bytes(runs.size / kCodesGroup);
  for_runs(runs, run_bytes, [&](const std::byte* run, const std::byte* ahead, size_t head) {
    sum_q8_run(run, ahead, runs, rows, weights + head, sums + head);
  });
}

void order_q8_sums(size_t size, float* sums) {
  for (size_t first = 0; first < size; first += kCodesGroup) order<Q8>(sums + first);
}

}  // namespace

const Q4Steps kQ4Avx2 = {{&round_query<Q4>, &dot_q4_runs}, &sum_q4_runs, &finish_q4_sums};
const Q8Steps kQ8Avx2 = {{&round_query<Q8>, &dot_q8_runs}, &sum_q8_runs, &order_q8_sums};

}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES

#endif
