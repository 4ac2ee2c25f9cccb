// Products of a run's rows with the query heads that share them: keys with queries, values with
// weights (attention_decode.cc); included once per instruction set.
#if defined(SPILLWAY_CPU_ATTENTION_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_ATTENTION_ROWS_INL_H
#undef SPILLWAY_CPU_ATTENTION_ROWS_INL_H
#else
#define SPILLWAY_CPU_ATTENTION_ROWS_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/base/dtype.h"
#include "kernels/cpu/unroll.h"
#include "kernels/cpu/vector_inl.h"
#include "kernels/kv_layout.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Loads one of two vectors of a row, widened. bfloat16 gives its even and its odd elements, which a
// shift and a mask give from one load; the query and the sum are kept in the same order
// (take_query, give_sums). 8-bit ones come without their row's scale.
template <class T>
HWY_INLINE V load_half(const T* HWY_RESTRICT from, size_t half) {
  const D d;
  return load_widened(d, from + half * hn::Lanes(d));
}
HWY_INLINE V load_half(const hwy::bfloat16_t* HWY_RESTRICT from, size_t half) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto both = hn::LoadU(du, reinterpret_cast<const uint32_t*>(from));
  if (half == 0) return hn::BitCast(d, hn::ShiftLeft<16>(both));
  return hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
}
HWY_INLINE V load_half(const int8_t* HWY_RESTRICT from, size_t half) {
  const D d;
  const hn::Rebind<int8_t, D> d8;
  const hn::RebindToSigned<D> di;
  return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, from + half * hn::Lanes(d))));
}

// Elements from a row of a run to the next: 8-bit ones have their scale in front.
template <class T>
constexpr size_t stride_of(size_t size) {
  return std::is_same_v<T, int8_t> ? format_row_bytes(Format::kQ8, static_cast<int64_t>(size))
                                   : size;
}

// Elements that whole pairs of vectors cover.
HWY_INLINE size_t paired(size_t size) {
  return size / (2 * hn::Lanes(D())) * (2 * hn::Lanes(D()));
}

// A query times `scale` in the order of load_half(); what is after the pairs stays in its place.
template <class T>
HWY_INLINE void take_query(const float* HWY_RESTRICT from, float scale, size_t size,
                           float* HWY_RESTRICT to) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V factor = hn::Set(d, scale);
  size_t i = 0;
  if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    for (; i + 2 * lanes <= size; i += 2 * lanes) {
      V even, odd;
      hn::LoadInterleaved2(d, from + i, even, odd);
      hn::StoreU(hn::Mul(even, factor), d, to + i);
      hn::StoreU(hn::Mul(odd, factor), d, to + i + lanes);
    }
  } else {
    for (; i + lanes <= size; i += lanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, from + i), factor), d, to + i);
    }
  }
  for (; i < size; ++i) to[i] = from[i] * scale;
}

// Sums in that order, divided, in their own.
template <class T>
HWY_INLINE void give_sums(const float* HWY_RESTRICT from, float divisor, size_t size,
                          float* HWY_RESTRICT to) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V by = hn::Set(d, divisor);
  size_t i = 0;
  if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    for (; i + 2 * lanes <= size; i += 2 * lanes) {
      const V even = hn::Div(hn::LoadU(d, from + i), by);
      const V odd = hn::Div(hn::LoadU(d, from + i + lanes), by);
      hn::StoreInterleaved2(even, odd, d, to + i);
    }
  } else {
    for (; i + lanes <= size; i += lanes) {
      hn::StoreU(hn::Div(hn::LoadU(d, from + i), by), d, to + i);
    }
  }
  for (; i < size; ++i) to[i] = from[i] / divisor;
}

constexpr size_t kStepLanes = hn::MaxLanes(D());
constexpr size_t kRun = static_cast<size_t>(kKvBlockRows);
static_assert(kRun % kStepLanes == 0);

// Locality argument of __builtin_prefetch: with AVX2 the first-level cache. Else the second one,
// since the first one's miss buffers are too few for memory's rate (two Xeon cores: 1.04 to 1.08).
constexpr int kPrefetchLocality = HWY_TARGET == HWY_AVX2 ? 3 : 2;

// With AVX2 each line is asked for twice: a core drops prefetches while its miss buffers are full,
// and once alone gives 0.82 to 0.93 of the rate (two Zen 3 cores).
constexpr size_t kPrefetchStep = HWY_TARGET == HWY_AVX2 ? 32 : 64;

// Prefetches the lines of a pair of vectors, where anything lies ahead.
template <bool kAhead, class T>
HWY_INLINE void prefetch_pair(const T* from) {
  if constexpr (!kAhead) return;
  const auto* bytes = reinterpret_cast<const std::byte*>(from);
  SPILLWAY_UNROLL_TIMES(2)
  for (size_t i = 0; i < 2 * kStepLanes * sizeof(T); i += kPrefetchStep)
    __builtin_prefetch(bytes + i, 0, kPrefetchLocality);
}

// q . k of a run's rows and one query, over whole pairs of vectors. All rows of the run, whether
// they are in use or not, so that a row's sum does not depend on how many are. Row by row, so that
// memory is read line by line, which the hardware's prefetcher follows.
template <size_t kSize, bool kAhead, class T>
HWY_INLINE void dot_rows(const float* q, const T* HWY_RESTRICT k, const T* ahead, size_t any_size,
                         float* scores) {
  const D d;
  const size_t size = kSize > 0 ? kSize : any_size;
  const size_t whole = paired(size), stride = stride_of<T>(size);
  for (size_t r = 0; r < kRun; r += kStepLanes) {
    V sums[kStepLanes];
    SPILLWAY_UNROLL_TIMES(16)
    for (size_t j = 0; j < kStepLanes; ++j) sums[j] = hn::Zero(d);
    SPILLWAY_UNROLL_TIMES(16)
    for (size_t j = 0; j < kStepLanes; ++j) {
      SPILLWAY_UNROLL_TIMES(8)
      for (size_t i = 0; i < whole; i += 2 * kStepLanes) {
        const size_t at = (r + j) * stride + i;
        prefetch_pair<kAhead>(ahead + at);
        const V q_a = hn::LoadU(d, q + i), q_b = hn::LoadU(d, q + i + kStepLanes);
        sums[j] = hn::MulAdd(q_a, load_half(k + at, 0), sums[j]);
        sums[j] = hn::MulAdd(q_b, load_half(k + at, 1), sums[j]);
      }
    }
    hn::StoreU(sums_of_lanes(sums), d, scores + r);
  }
}

// sum += a * b. Of intrinsics g++ 12 makes a tile for 16 registers whose queries lie on the stack
// and are read once for each row: 28 cycles for a row of 64 numbers and four heads, not 22.
HWY_INLINE void add_product(V& sum, V a, V b) {
#if HWY_TARGET == HWY_AVX2
  asm volatile("vfmadd231ps %1, %2, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
#else
  sum = hn::MulAdd(a, b, sum);
#endif
}

// The rows that share a load of a query: as many sums as there are registers for, and enough that
// their chains hide the latency of the multiply-add.
template <size_t kHeads>
constexpr size_t kTileRows = kHeads >= 3 ? kStepLanes / 4 : kStepLanes / 2;

// dot_rows() of several queries, which share what is loaded and widened of a row. Sums are added up
// over their lanes when those of all rows are known, which takes no turns with the products.
template <size_t kHeads, size_t kSize, bool kAhead, class T>
HWY_NOINLINE void dot_tiles(const float* const* q, const T* HWY_RESTRICT k, const T* ahead,
                            size_t any_size, float* const* scores) {
  const D d;
  constexpr size_t kRows = kTileRows<kHeads>;
  const size_t size = kSize > 0 ? kSize : any_size;
  const size_t whole = paired(size), stride = stride_of<T>(size);
  V by_lanes[kHeads][kRun];
  const float* queries[kHeads];
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t h = 0; h < kHeads; ++h) queries[h] = q[h];
  SPILLWAY_UNROLL_TIMES(1)
  for (size_t r = 0; r < kRun; r += kRows) {
    V sums[kHeads][kRows];
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t h = 0; h < kHeads; ++h) {
      asm volatile("" : "+r"(queries[h]));  // Not to be loaded ahead of the loop
      SPILLWAY_UNROLL_TIMES(8)
      for (size_t j = 0; j < kRows; ++j) sums[h][j] = hn::Zero(d);
    }
    SPILLWAY_UNROLL_TIMES(8)
    for (size_t i = 0; i < whole; i += 2 * kStepLanes) {
      SPILLWAY_UNROLL_TIMES(8)
      for (size_t j = 0; j < kRows; ++j) {
        prefetch_pair<kAhead>(ahead + (r + j) * stride + i);
      }
      SPILLWAY_UNROLL_TIMES(2)
      for (size_t half = 0; half < 2; ++half) {
        V keys[kRows];
        SPILLWAY_UNROLL_TIMES(8)
        for (size_t j = 0; j < kRows; ++j) keys[j] = load_half(k + (r + j) * stride + i, half);
        SPILLWAY_UNROLL_TIMES(4)
        for (size_t h = 0; h < kHeads; ++h) {
          const V query = hn::LoadU(d, queries[h] + i + half * kStepLanes);
          SPILLWAY_UNROLL_TIMES(8)
          for (size_t j = 0; j < kRows; ++j) add_product(sums[h][j], query, keys[j]);
        }
      }
    }
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t h = 0; h < kHeads; ++h) {
      SPILLWAY_UNROLL_TIMES(8)
      for (size_t j = 0; j < kRows; ++j) by_lanes[h][r + j] = sums[h][j];
    }
  }
  SPILLWAY_UNROLL_TIMES(1)
  for (size_t h = 0; h < kHeads; ++h) {
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t r = 0; r < kRun; r += kStepLanes) {
      hn::StoreU(sums_of_lanes(by_lanes[h] + r), d, scores[h] + r);
    }
  }
}

HWY_INLINE float element(const float* x, size_t i) {
  return x[i];
}
HWY_INLINE float element(const hwy::bfloat16_t* x, size_t i) {
  return bf16_to_f32(x[i].bits);
}
HWY_INLINE float element(const hwy::float16_t* x, size_t i) {
  uint16_t bits;
  std::memcpy(&bits, x + i, sizeof(bits));
  return f16_to_f32(bits);
}

HWY_INLINE float element(const int8_t* x, size_t i) {
  return static_cast<float>(x[i]);
}

// Adds the columns after the last whole pair of vectors, for head sizes that are no multiple of
// one.
template <class T>
void dot_tail(const float* q, const T* k, size_t size, size_t rows, float* scores) {
  for (size_t i = paired(size); i < size; ++i) {
    for (size_t r = 0; r < rows; ++r) scores[r] += q[i] * element(k, r * stride_of<T>(size) + i);
  }
}

// out += sum over rows of weights[r] * v[r] over kPairs pairs of vectors from column `i` on, of
// kHeads heads, out in the order of load_half(). Where there are registers for them, even and odd
// rows have sums of their own: their chains hide the latency of the multiply-add.
constexpr size_t kChains = HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3 ? 1 : 2;
template <size_t kHeads, size_t kPairs, bool kAhead, class T>
HWY_INLINE void sum_columns(const float* const* weights, const T* HWY_RESTRICT v, const T* ahead,
                            size_t size, size_t rows, size_t i, float* const* out) {
  const D d;
  constexpr size_t kVectors = 2 * kPairs;
  V sums[kChains][kHeads * kVectors];
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t h = 0; h < kHeads; ++h) {
    SPILLWAY_UNROLL_TIMES(8)
    for (size_t p = 0; p < kVectors; ++p) {
      sums[0][h * kVectors + p] = hn::LoadU(d, out[h] + i + p * kStepLanes);
      if constexpr (kChains == 2) sums[1][h * kVectors + p] = hn::Zero(d);
    }
  }
  const auto add = [&](size_t r, V* HWY_RESTRICT to) {
    V w[kHeads];
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t h = 0; h < kHeads; ++h) w[h] = hn::Set(d, weights[h][r]);
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t p = 0; p < kPairs; ++p) {
      const size_t column = i + p * 2 * kStepLanes, at = r * stride_of<T>(size) + column;
      prefetch_pair<kAhead>(ahead + at);
      const V a = load_half(v + at, 0), b = load_half(v + at, 1);
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t h = 0; h < kHeads; ++h) {
        V* HWY_RESTRICT sum = to + h * kVectors + 2 * p;
        sum[0] = hn::MulAdd(w[h], a, sum[0]);
        sum[1] = hn::MulAdd(w[h], b, sum[1]);
      }
    }
  };
  size_t r = 0;
  for (; r + 2 <= rows; r += 2) {
    add(r, sums[0]);
    add(r + 1, sums[kChains - 1]);
  }
  if (r < rows) add(r, sums[0]);
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t h = 0; h < kHeads; ++h) {
    SPILLWAY_UNROLL_TIMES(8)
    for (size_t p = 0; p < kVectors; ++p) {
      V sum = sums[0][h * kVectors + p];
      if constexpr (kChains == 2) sum = hn::Add(sum, sums[1][h * kVectors + p]);
      hn::StoreU(sum, d, out[h] + i + p * kStepLanes);
    }
  }
}

#if HWY_TARGET == HWY_AVX2
// The same of several heads, of which there are enough that one chain each hides the latency.
template <size_t kHeads, size_t kPairs, bool kAhead, class T>
HWY_NOINLINE void sum_tile(const float* const* weights, const T* HWY_RESTRICT v, const T* ahead,
                           size_t size, size_t rows, size_t i, float* const* out) {
  const D d;
  constexpr size_t kVectors = 2 * kPairs;
  V sums[kHeads][kVectors];
  const float* of_head[kHeads];
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t h = 0; h < kHeads; ++h) {
    of_head[h] = weights[h];
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t p = 0; p < kVectors; ++p) sums[h][p] = hn::LoadU(d, out[h] + i + p * kStepLanes);
  }
  SPILLWAY_UNROLL_TIMES(1)
  for (size_t r = 0; r < rows; ++r) {
    const size_t row = r * stride_of<T>(size);
    SPILLWAY_UNROLL_TIMES(2)
    for (size_t p = 0; p < kPairs; ++p) {
      const size_t column = i + 2 * p * kStepLanes;
      prefetch_pair<kAhead>(ahead + row + column);
      const V a = load_half(v + row + column, 0), b = load_half(v + row + column, 1);
      SPILLWAY_UNROLL_TIMES(4)
      for (size_t h = 0; h < kHeads; ++h) {
        const V w = hn::Set(d, of_head[h][r]);
        add_product(sums[h][2 * p], w, a);
        add_product(sums[h][2 * p + 1], w, b);
      }
    }
  }
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t h = 0; h < kHeads; ++h) {
    SPILLWAY_UNROLL_TIMES(4)
    for (size_t p = 0; p < kVectors; ++p) hn::StoreU(sums[h][p], d, out[h] + i + p * kStepLanes);
  }
}
#endif

template <size_t kHeads, size_t kSize, bool kAhead, class T>
HWY_INLINE void sum_rows(const float* const* weights, const T* HWY_RESTRICT v, const T* ahead,
                         size_t any_size, size_t rows, float* const* out) {
  constexpr size_t kPair = 2 * kStepLanes;
  static_assert(kSize % kPair == 0);
  const size_t size = kSize > 0 ? kSize : any_size;
  size_t i = 0;
  if constexpr (kHeads == 1) {
    for (; i + 4 * kPair <= size; i += 4 * kPair)
      sum_columns<1, 4, kAhead>(weights, v, ahead, size, rows, i, out);
  }
  const auto add = [&](auto pairs) {
    constexpr size_t kPairs = decltype(pairs)::value;
    for (; i + kPairs * kPair <= size; i += kPairs * kPair) {
#if HWY_TARGET == HWY_AVX2
      if constexpr (kHeads > 1) {
        sum_tile<kHeads, kPairs, kAhead>(weights, v, ahead, size, rows, i, out);
        continue;
      }
#endif
      sum_columns<kHeads, kPairs, kAhead>(weights, v, ahead, size, rows, i, out);
    }
  };
  if constexpr (kHeads <= 2) add(std::integral_constant<size_t, 2>());
  add(std::integral_constant<size_t, 1>());
  if constexpr (kSize > 0) return;
  for (; i < size; ++i) {
    for (size_t h = 0; h < kHeads; ++h) {
      for (size_t r = 0; r < rows; ++r)
        out[h][i] += weights[h][r] * element(v, r * stride_of<T>(size) + i);
    }
  }
}

// Calls use(number of heads as a constant, first head) for `group` heads: those of a KV head share
// what is loaded of a row, as many as there are registers for.
#if HWY_TARGET <= HWY_AVX2
constexpr size_t kSharedHeads = 4;
#elif HWY_TARGET == HWY_SCALAR
constexpr size_t kSharedHeads = 1;
#else
constexpr size_t kSharedHeads = 2;
#endif
template <class Use>
HWY_INLINE void for_heads(size_t group, const Use& use) {
  size_t h = 0;
  if constexpr (kSharedHeads >= 4) {
    // Five are three and two: one alone shares nothing.
    for (; group - h >= 4 && group - h != 5; h += 4) use(std::integral_constant<size_t, 4>(), h);
    for (; group - h >= 3; h += 3) use(std::integral_constant<size_t, 3>(), h);
  }
  if constexpr (kSharedHeads >= 2) {
    for (; h + 2 <= group; h += 2) use(std::integral_constant<size_t, 2>(), h);
  }
  for (; h < group; ++h) use(std::integral_constant<size_t, 1>(), h);
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#endif
