// One decode step of one head: reads every cached row once for the scores and once for the sum.
#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/cpu/attention_body.h"
#include "kernels/kv_layout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_decode.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// q . k of four neighbouring rows: four chains hide the latency of the multiply-add.
template <class T>
HWY_INLINE void dot_rows(const float* HWY_RESTRICT q, const T* HWY_RESTRICT k, size_t size,
                         size_t rows, float* HWY_RESTRICT scores) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = size / lanes * lanes;
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T* HWY_RESTRICT k0 = k + r * size;
    V s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (size_t i = 0; i < whole; i += lanes) {
      const V x = hn::LoadU(d, q + i);
      s0 = hn::MulAdd(x, load_widened(d, k0 + i), s0);
      s1 = hn::MulAdd(x, load_widened(d, k0 + size + i), s1);
      s2 = hn::MulAdd(x, load_widened(d, k0 + 2 * size + i), s2);
      s3 = hn::MulAdd(x, load_widened(d, k0 + 3 * size + i), s3);
    }
    scores[r] = hn::GetLane(hn::SumOfLanes(d, s0));
    scores[r + 1] = hn::GetLane(hn::SumOfLanes(d, s1));
    scores[r + 2] = hn::GetLane(hn::SumOfLanes(d, s2));
    scores[r + 3] = hn::GetLane(hn::SumOfLanes(d, s3));
  }
  for (; r < rows; ++r) {
    V sum = hn::Zero(d);
    for (size_t i = 0; i < whole; i += lanes) {
      sum = hn::MulAdd(hn::LoadU(d, q + i), load_widened(d, k + r * size + i), sum);
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

// The columns behind the last whole vector, for head sizes that are no multiple of one.
template <class T>
void dot_tail(const float* q, const T* k, size_t size, size_t rows, float* scores) {
  const size_t lanes = hn::Lanes(D());
  for (size_t i = size / lanes * lanes; i < size; ++i) {
    for (size_t r = 0; r < rows; ++r) scores[r] += q[i] * element(k, r * size + i);
  }
}

// out += sum over rows of weights[r] * v[r].
template <class T>
HWY_INLINE void sum_rows(const float* HWY_RESTRICT weights, const T* HWY_RESTRICT v, size_t size,
                         size_t rows, float* HWY_RESTRICT out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 4 * lanes <= size; i += 4 * lanes) {
    V o0 = hn::LoadU(d, out + i), o1 = hn::LoadU(d, out + i + lanes);
    V o2 = hn::LoadU(d, out + i + 2 * lanes), o3 = hn::LoadU(d, out + i + 3 * lanes);
    for (size_t r = 0; r < rows; ++r) {
      const V w = hn::Set(d, weights[r]);
      const T* HWY_RESTRICT row = v + r * size + i;
      o0 = hn::MulAdd(w, load_widened(d, row), o0);
      o1 = hn::MulAdd(w, load_widened(d, row + lanes), o1);
      o2 = hn::MulAdd(w, load_widened(d, row + 2 * lanes), o2);
      o3 = hn::MulAdd(w, load_widened(d, row + 3 * lanes), o3);
    }
    hn::StoreU(o0, d, out + i);
    hn::StoreU(o1, d, out + i + lanes);
    hn::StoreU(o2, d, out + i + 2 * lanes);
    hn::StoreU(o3, d, out + i + 3 * lanes);
  }
  for (; i + lanes <= size; i += lanes) {
    V o = hn::LoadU(d, out + i);
    for (size_t r = 0; r < rows; ++r) {
      o = hn::MulAdd(hn::Set(d, weights[r]), load_widened(d, v + r * size + i), o);
    }
    hn::StoreU(o, d, out + i);
  }
  for (; i < size; ++i) {
    for (size_t r = 0; r < rows; ++r) out[i] += weights[r] * element(v, r * size + i);
  }
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
    const V e = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + i), m));
    hn::StoreU(e, d, scores + i);
    sum = hn::Add(sum, e);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  if (i < rows) {
    HWY_ALIGN float rest[hn::MaxLanes(D())] = {};
    std::copy(scores + i, scores + rows, rest);
    hn::Store(hn::Exp(d, hn::Sub(hn::Load(d, rest), m)), d, rest);
    for (size_t j = 0; i < rows; ++i, ++j) total += scores[i] = rest[j];
  }
  return total;
}

template <class T>
void attend_rows(const HeadView& view, float* HWY_RESTRICT scratch) {
  const auto size = static_cast<size_t>(view.head_size);
  const auto rows = static_cast<size_t>(view.position + 1);
  constexpr auto kRun = static_cast<size_t>(kKvBlockRows);
  float* HWY_RESTRICT out = scratch;
  float* HWY_RESTRICT q = out + size;
  float* HWY_RESTRICT scores = q + size;
  for (size_t i = 0; i < size; ++i) q[i] = view.q[i] * view.scale;
  for (size_t first = 0; first < rows; first += kRun) {
    const auto* k = reinterpret_cast<const T*>(view.keys + first / kRun * view.block_bytes);
    const size_t count = std::min(kRun, rows - first);
    dot_rows(q, k, size, count, scores + first);
    dot_tail(q, k, size, count, scores + first);
  }
  const float total = softmax_in_place(scores, rows);
  std::fill(out, out + size, 0.0f);
  for (size_t first = 0; first < rows; first += kRun) {
    const auto* v = reinterpret_cast<const T*>(view.values + first / kRun * view.block_bytes);
    sum_rows(scores + first, v, size, std::min(kRun, rows - first), out);
  }
  for (size_t i = 0; i < size; ++i) out[i] /= total;
  store_row(view.out_dtype, out, size, view.out);
}

void AttendOne(const HeadView& view, float* scratch) {
  switch (view.kv_dtype) {
    case DType::kF32:
      return attend_rows<float>(view, scratch);
    case DType::kBF16:
      return attend_rows<hwy::bfloat16_t>(view, scratch);
    case DType::kF16:
      return attend_rows<hwy::float16_t>(view, scratch);
    default:
      SPILLWAY_CHECK(false);
  }
}

void StoreKeysAndValues(const HeadView& view) {
  const auto size = static_cast<size_t>(view.head_size);
  const size_t row_bytes = size * dtype_bytes(view.kv_dtype);
  for (int64_t i = 0; i < view.tokens; ++i) {
    const int64_t row = view.position + i;
    const size_t offset = static_cast<size_t>(row / kKvBlockRows) * view.block_bytes +
                          static_cast<size_t>(row % kKvBlockRows) * row_bytes;
    store_row(view.kv_dtype, view.k + i * view.stride, size, view.keys + offset);
    store_row(view.kv_dtype, view.v + i * view.stride, size, view.values + offset);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {
HWY_EXPORT(AttendOne);
HWY_EXPORT(StoreKeysAndValues);
void attend_one(const HeadView& view, float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttendOne)(view, scratch);
}
void store_keys_and_values(const HeadView& view) {
  HWY_DYNAMIC_DISPATCH(StoreKeysAndValues)(view);
}
}  // namespace spillway::cpu
#endif  // HWY_ONCE
