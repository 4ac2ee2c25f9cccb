// One decode step of one head: reads every cached row once for the scores and once for the sum.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/cpu/attention_body.h"
#include "kernels/kv_layout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_decode.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "kernels/cpu/q4_inl.h"
#include "kernels/cpu/vector_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Two vectors of a row, widened. bfloat16 comes as its even and its odd elements, which a shift and
// a mask give from one load; the query and the sum are kept in the same order (to_pair_order).
template <class T>
HWY_INLINE void load_pair(const T* HWY_RESTRICT from, V& a, V& b) {
  const D d;
  a = load_widened(d, from);
  b = load_widened(d, from + hn::Lanes(d));
}
HWY_INLINE void load_pair(const hwy::bfloat16_t* HWY_RESTRICT from, V& a, V& b) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto both = hn::LoadU(du, reinterpret_cast<const uint32_t*>(from));
  a = hn::BitCast(d, hn::ShiftLeft<16>(both));
  b = hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
}

// Elements that whole pairs of vectors cover.
HWY_INLINE size_t paired(size_t size) {
  return size / (2 * hn::Lanes(D())) * (2 * hn::Lanes(D()));
}

// Brings a row into (or back from) the order of load_pair<T>; the rest behind the pairs stays.
template <class T>
void to_pair_order(const float* HWY_RESTRICT from, size_t size, bool back, float* HWY_RESTRICT to) {
  const size_t lanes = hn::Lanes(D());
  const size_t whole = std::is_same_v<T, hwy::bfloat16_t> ? paired(size) : 0;
  for (size_t first = 0; first < whole; first += 2 * lanes) {
    for (size_t i = 0; i < 2 * lanes; ++i) {
      const size_t paired_at = i % 2 * lanes + i / 2;
      to[first + (back ? i : paired_at)] = from[first + (back ? paired_at : i)];
    }
  }
  std::copy(from + whole, from + size, to + whole);
}

// q . k of neighbouring rows, over whole pairs of vectors. Four rows at a time: their chains hide
// the latency of the multiply-add.
template <class T>
HWY_INLINE void dot_rows(const float* HWY_RESTRICT q, const T* HWY_RESTRICT k, size_t size,
                         size_t rows, float* HWY_RESTRICT scores) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = paired(size);
  V a, b;
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T* HWY_RESTRICT row = k + r * size;
    V s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (size_t i = 0; i < whole; i += 2 * lanes) {
      const V x = hn::LoadU(d, q + i);
      const V y = hn::LoadU(d, q + i + lanes);
      load_pair(row + i, a, b);
      s0 = hn::MulAdd(y, b, hn::MulAdd(x, a, s0));
      load_pair(row + size + i, a, b);
      s1 = hn::MulAdd(y, b, hn::MulAdd(x, a, s1));
      load_pair(row + 2 * size + i, a, b);
      s2 = hn::MulAdd(y, b, hn::MulAdd(x, a, s2));
      load_pair(row + 3 * size + i, a, b);
      s3 = hn::MulAdd(y, b, hn::MulAdd(x, a, s3));
    }
    scores[r] = hn::GetLane(hn::SumOfLanes(d, s0));
    scores[r + 1] = hn::GetLane(hn::SumOfLanes(d, s1));
    scores[r + 2] = hn::GetLane(hn::SumOfLanes(d, s2));
    scores[r + 3] = hn::GetLane(hn::SumOfLanes(d, s3));
  }
  for (; r < rows; ++r) {
    V sum = hn::Zero(d);
    for (size_t i = 0; i < whole; i += 2 * lanes) {
      load_pair(k + r * size + i, a, b);
      sum = hn::MulAdd(hn::LoadU(d, q + i), a, sum);
      sum = hn::MulAdd(hn::LoadU(d, q + i + lanes), b, sum);
    }
    scores[r] = hn::GetLane(hn::SumOfLanes(d, sum));
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

// The columns behind the last whole pair of vectors, for head sizes that are no multiple of one.
template <class T>
void dot_tail(const float* q, const T* k, size_t size, size_t rows, float* scores) {
  for (size_t i = paired(size); i < size; ++i) {
    for (size_t r = 0; r < rows; ++r) scores[r] += q[i] * element(k, r * size + i);
  }
}

// out += sum over rows of weights[r] * v[r], out in pair order.
template <class T>
HWY_INLINE void sum_rows(const float* HWY_RESTRICT weights, const T* HWY_RESTRICT v, size_t size,
                         size_t rows, float* HWY_RESTRICT out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const size_t step = 2 * lanes;
  V a, b;
  size_t i = 0;
  for (; i + 2 * step <= size; i += 2 * step) {
    V o0 = hn::LoadU(d, out + i), o1 = hn::LoadU(d, out + i + lanes);
    V o2 = hn::LoadU(d, out + i + step), o3 = hn::LoadU(d, out + i + step + lanes);
    for (size_t r = 0; r < rows; ++r) {
      const V w = hn::Set(d, weights[r]);
      load_pair(v + r * size + i, a, b);
      o0 = hn::MulAdd(w, a, o0);
      o1 = hn::MulAdd(w, b, o1);
      load_pair(v + r * size + i + step, a, b);
      o2 = hn::MulAdd(w, a, o2);
      o3 = hn::MulAdd(w, b, o3);
    }
    hn::StoreU(o0, d, out + i);
    hn::StoreU(o1, d, out + i + lanes);
    hn::StoreU(o2, d, out + i + step);
    hn::StoreU(o3, d, out + i + step + lanes);
  }
  for (; i + step <= size; i += step) {
    V o0 = hn::LoadU(d, out + i), o1 = hn::LoadU(d, out + i + lanes);
    for (size_t r = 0; r < rows; ++r) {
      const V w = hn::Set(d, weights[r]);
      load_pair(v + r * size + i, a, b);
      o0 = hn::MulAdd(w, a, o0);
      o1 = hn::MulAdd(w, b, o1);
    }
    hn::StoreU(o0, d, out + i);
    hn::StoreU(o1, d, out + i + lanes);
  }
  for (; i < size; ++i) {
    for (size_t r = 0; r < rows; ++r) out[i] += weights[r] * element(v, r * size + i);
  }
}

// e^x, and NaN for NaN, of which Highway's Exp makes 0.
HWY_INLINE V exp_or_nan(V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(D(), x));
}

// scores -> exp(score - max); returns the sum.
float softmax_in_place(float* HWY_RESTRICT scores, size_t rows) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const float most = *std::max_element(scores, scores + rows);
  const V m = hn::Set(d, most);
  V sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= rows; i += lanes) {
    const V e = exp_or_nan(hn::Sub(hn::LoadU(d, scores + i), m));
    hn::StoreU(e, d, scores + i);
    sum = hn::Add(sum, e);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  if (i < rows) {
    HWY_ALIGN float rest[hn::MaxLanes(D())] = {};
    std::copy(scores + i, scores + rows, rest);
    hn::Store(exp_or_nan(hn::Sub(hn::Load(d, rest), m)), d, rest);
    for (size_t j = 0; i < rows; ++i, ++j) total += scores[i] = rest[j];
  }
  return total;
}

// to += from * factor. Each sum has one term at a time, so the order of its terms is that of steps.
void add_scaled(const float* HWY_RESTRICT from, float factor, size_t count,
                float* HWY_RESTRICT to) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V f = hn::Set(d, factor);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, from + i), f, hn::LoadU(d, to + i)), d, to + i);
  }
  for (; i < count; ++i) to[i] = std::fma(from[i], factor, to[i]);
}

// Asks for a run of rows ahead of its use. A run is 16 rows, then the next one lies a whole block
// further, where the hardware's prefetcher does not follow. Into the second level: so many lines at
// once would fill the first one's miss buffers, two dozen or so, and every load would wait behind
// them.
HWY_INLINE void prefetch_run(const std::byte* run, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(run + i, 0, 2);
}

// Bytes between what is asked for and what is in use: a core reads 15 GB/s from memory that answers
// after 0.1 microseconds only if more than 1.5 KB are under way all the time; 16 rows may be less.
constexpr size_t kAheadBytes = 8192;

// Reads the runs of one head's keys or values in order, asking for each some time before.
class RunReader {
 public:
  RunReader(const std::byte* first, size_t block_bytes, size_t run_bytes, size_t runs)
      : first_(first),
        block_bytes_(block_bytes),
        run_bytes_(run_bytes),
        runs_(runs),
        ahead_(std::max<size_t>(1, kAheadBytes / run_bytes)) {}

  void start() const {
    for (size_t i = 0; i < std::min(ahead_, runs_); ++i) {
      prefetch_run(first_ + i * block_bytes_, run_bytes_);
    }
  }
  const std::byte* read(size_t run) const {
    if (run + ahead_ < runs_) {
      prefetch_run(first_ + (run + ahead_) * block_bytes_, run_bytes_);
    }
    return first_ + run * block_bytes_;
  }

 private:
  const std::byte* first_;
  size_t block_bytes_, run_bytes_, runs_, ahead_;
};

// `count` rows of a run as T: where they lie or, with kExpand, 4-bit rows expanded to `expanded`.
// 16 rows of 128 numbers are 8 KiB in the L1 cache, which the sums read as they read float32 rows.
template <class T, bool kExpand>
HWY_INLINE const T* rows_of(const HeadView& view, const std::byte* run, size_t count,
                            float* HWY_RESTRICT expanded) {
  if constexpr (!kExpand) {
    return reinterpret_cast<const T*>(run);
  } else {
    const auto size = static_cast<size_t>(view.head_size);
    for (size_t r = 0; r < count; ++r) {
      expand_q4_row(run + r * view.kv_row_bytes, size, expanded + r * size);
    }
    return expanded;
  }
}

template <class T, bool kExpand = false>
void attend_rows(const HeadView& view, float* HWY_RESTRICT scratch) {
  const auto size = static_cast<size_t>(view.head_size);
  const auto rows = static_cast<size_t>(view.rows);
  constexpr auto kRun = static_cast<size_t>(kKvBlockRows);
  const size_t runs = (rows + kRun - 1) / kRun;
  const RunReader keys(view.keys, view.block_bytes, kRun * view.kv_row_bytes, runs);
  const RunReader values(view.values, view.block_bytes, kRun * view.kv_row_bytes, runs);
  keys.start();
  float* HWY_RESTRICT out = scratch;
  float* HWY_RESTRICT q = out + size;
  float* HWY_RESTRICT expanded = q + size;
  float* HWY_RESTRICT scores = expanded + (kExpand ? kRun * size : 0);
  for (size_t i = 0; i < size; ++i) out[i] = view.q[i] * view.scale;
  to_pair_order<T>(out, size, false, q);
  for (size_t first = 0; first < rows; first += kRun) {
    const size_t count = std::min(kRun, rows - first);
    const T* k = rows_of<T, kExpand>(view, keys.read(first / kRun), count, expanded);
    dot_rows(q, k, size, count, scores + first);
    dot_tail(q, k, size, count, scores + first);
  }
  values.start();
  const float total = softmax_in_place(scores, rows);
  if (view.scores != nullptr) add_scaled(scores, 1.0f / total, rows, view.scores);
  std::fill(out, out + size, 0.0f);
  for (size_t first = 0; first < rows; first += kRun) {
    const size_t count = std::min(kRun, rows - first);
    const T* v = rows_of<T, kExpand>(view, values.read(first / kRun), count, expanded);
    sum_rows(scores + first, v, size, count, out);
  }
  for (size_t i = 0; i < size; ++i) out[i] /= total;
  to_pair_order<T>(out, size, true, q);
  store_row(view.out_dtype, q, size, view.out);
}

void AttendOne(const HeadView& view, float* scratch) {
  switch (view.kv_dtype) {
    case DType::kF32:
      return attend_rows<float>(view, scratch);
    case DType::kBF16:
      return attend_rows<hwy::bfloat16_t>(view, scratch);
    case DType::kF16:
      return attend_rows<hwy::float16_t>(view, scratch);
    case DType::kQ4:
      return attend_rows<float, true>(view, scratch);
    default:
      SPILLWAY_CHECK(false);
  }
}

void store_kv_row(DType dtype, const float* HWY_RESTRICT from, size_t size, std::byte* to) {
  if (dtype == DType::kQ4) {
    pack_q4_row({from, size}, to);
  } else {
    store_row(dtype, from, size, to);
  }
}

void StoreRows(const HeadView& view, int64_t token, int64_t count, int64_t slot) {
  const auto size = static_cast<size_t>(view.head_size);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = (token + i) * view.stride;
    store_kv_row(view.kv_dtype, view.k + from, size, view.key_at(slot + i));
    store_kv_row(view.kv_dtype, view.v + from, size, view.value_at(slot + i));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {
HWY_EXPORT(AttendOne);
HWY_EXPORT(StoreRows);
size_t step_scratch_bytes(const HeadView& view) {
  const int64_t expanded = view.kv_dtype == DType::kQ4 ? kKvBlockRows * view.head_size : 0;
  return static_cast<size_t>(2 * view.head_size + view.rows + expanded) * sizeof(float);
}
void attend_one(const HeadView& view, float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttendOne)(view, scratch);
}
void store_rows(const HeadView& view, int64_t token, int64_t count, int64_t slot) {
  HWY_DYNAMIC_DISPATCH(StoreRows)(view, token, count, slot);
}
}  // namespace spillway::cpu
#endif  // HWY_ONCE
