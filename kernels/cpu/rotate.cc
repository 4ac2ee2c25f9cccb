// Query and key heads, row by row: RMSNorm of each head, rotary positions, a Hadamard
// matrix.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rotate.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/vector_inl.h"
#include "kernels/input_hadamard.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

void normalize_head(float* HWY_RESTRICT x, const float* HWY_RESTRICT weight, size_t count,
                    float epsilon) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V sum = hn::Zero(d);
  for (size_t i = 0; i < count; i += lanes) {
    const V v = load_up_to(d, x + i, count - i);
    sum = hn::MulAdd(v, v, sum);
  }
  const float square = hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<float>(count);
  const V scale = hn::Set(d, 1.0f / std::sqrt(square + epsilon));
  for (size_t i = 0; i < count; i += lanes) {
    const V v = hn::Mul(load_up_to(d, x + i, count - i), scale);
    store_up_to(d, hn::Mul(v, load_up_to(d, weight + i, count - i)), x + i, count - i);
  }
}

// Rotates the pairs (x[i], x[i + half]).
void rotate_halves(float* HWY_RESTRICT x, const float* HWY_RESTRICT cosines,
                   const float* HWY_RESTRICT sines, size_t half) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  float* HWY_RESTRICT y = x + half;
  for (size_t i = 0; i < half; i += lanes) {
    const size_t rest = half - i;
    const V a = load_up_to(d, x + i, rest), b = load_up_to(d, y + i, rest);
    const V c = load_up_to(d, cosines + i, rest), s = load_up_to(d, sines + i, rest);
    store_up_to(d, hn::NegMulAdd(b, s, hn::Mul(a, c)), x + i, rest);
    store_up_to(d, hn::MulAdd(a, s, hn::Mul(b, c)), y + i, rest);
  }
}

// Rotates the pairs (x[2i], x[2i + 1]).
void rotate_neighbours(float* HWY_RESTRICT x, const float* HWY_RESTRICT cosines,
                       const float* HWY_RESTRICT sines, size_t half) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    V a, b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    const V c = hn::LoadU(d, cosines + i), s = hn::LoadU(d, sines + i);
    hn::StoreInterleaved2(hn::NegMulAdd(b, s, hn::Mul(a, c)), hn::MulAdd(a, s, hn::Mul(b, c)), d,
                          x + 2 * i);
  }
  for (; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cosines[i] - b * sines[i];
    x[2 * i + 1] = b * cosines[i] + a * sines[i];
  }
}

// Multiplies each `size` numbers, a power of two, by the Walsh-Hadamard matrix over its root.
void multiply_hadamard(float* HWY_RESTRICT x, size_t count, size_t size) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t first = 0; first < count; first += size) {
    multiply_by_hadamard_block(1.0f, static_cast<int64_t>(size), x + first);
  }
  const V scale = hn::Set(d, 1.0f / std::sqrt(static_cast<float>(size)));
  for (size_t i = 0; i < count; i += lanes) {
    store_up_to(d, hn::Mul(load_up_to(d, x + i, count - i), scale), x + i, count - i);
  }
}

void RotateRow(const RotateArgs& args, int64_t row) {
  const auto size = static_cast<size_t>(args.head_size);
  const auto half = static_cast<size_t>(args.table.columns / 2);
  const auto* cosines = half == 0 ? nullptr : reinterpret_cast<const float*>(args.table.row(row));
  float* x = args.qkv.f32(row);
  for (int64_t head = 0; head < args.heads + args.kv_heads; ++head, x += size) {
    const float* norm = head < args.heads ? args.query_norm : args.key_norm;
    if (norm != nullptr) normalize_head(x, norm, size, args.epsilon);
    if (half != 0 && args.interleaved) {
      rotate_neighbours(x, cosines, cosines + half, half);
    } else if (half != 0) {
      rotate_halves(x, cosines, cosines + half, half);
    }
    if (args.hadamard) {
      multiply_hadamard(x, size, static_cast<size_t>(hadamard_size(args.head_size)));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {

HWY_EXPORT(RotateRow);

void run(CpuContext& context, const RotateArgs& args) {
  const int64_t task_rows = context.task_rows(args.qkv.rows, 8);
  context.parallel_for((args.qkv.rows + task_rows - 1) / task_rows, [&](int64_t task) {
    const int64_t last = std::min(args.qkv.rows, (task + 1) * task_rows);
    for (int64_t row = task * task_rows; row < last; ++row) {
      HWY_DYNAMIC_DISPATCH(RotateRow)(args, row);
    }
  });
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
