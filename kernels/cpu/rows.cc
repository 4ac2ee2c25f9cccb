// The ops that work row by row: LayerNorm and RMSNorm, table look-up, conversion.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/quant_inl.h"
#include "kernels/cpu/vector_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

float sum_of(const float* HWY_RESTRICT x, size_t count) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V sum = hn::Zero(d);
  for (size_t i = 0; i < count; i += lanes) sum = hn::Add(sum, load_up_to(d, x + i, count - i));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Sum of (x - mean)^2: a second pass, since E[x^2] - mean^2 loses digits.
float squares_of(const float* HWY_RESTRICT x, size_t count, float mean) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V m = hn::Set(d, mean);
  V sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V delta = hn::Sub(hn::LoadU(d, x + i), m);
    sum = hn::MulAdd(delta, delta, sum);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += (x[i] - mean) * (x[i] - mean);
  return total;
}

// `row` is a scratch row of the thread: the result in f32 before it is stored.
void NormalizeRow(const NormArgs& args, int64_t index, float* HWY_RESTRICT row) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const auto count = static_cast<size_t>(args.in.columns);
  const auto* x = reinterpret_cast<const float*>(args.in.row(index));
  const bool centred = args.kind == NormKind::kLayerNorm;
  const float mean = centred ? sum_of(x, count) / static_cast<float>(count) : 0.0f;
  const float variance = squares_of(x, count, mean) / static_cast<float>(count);
  const V scale = hn::Set(d, 1.0f / std::sqrt(variance + args.epsilon));
  const V m = hn::Set(d, mean);
  for (size_t i = 0; i < count; i += lanes) {
    V v = hn::Mul(hn::Sub(load_up_to(d, x + i, count - i), m), scale);
    if (args.weight != nullptr) v = hn::Mul(v, load_up_to(d, args.weight + i, count - i));
    if (args.bias != nullptr) v = hn::Add(v, load_up_to(d, args.bias + i, count - i));
    store_up_to(d, v, row + i, count - i);
  }
  store_row(args.out.dtype, row, count, args.out.row(index));
}

// out[i] (+)= scale * the table's row, widened.
void GatherRow(Format format, const std::byte* from, size_t count, float scale, bool accumulate,
               float* HWY_RESTRICT out, float* HWY_RESTRICT widened) {
  if (is_quantized(format)) {
    expand_quantized_row(format, from, count, widened);
  } else {
    convert_elements(element_of(format), from, DType::kF32, reinterpret_cast<std::byte*>(widened),
                     count);
  }
  if (!accumulate) {
    for (size_t i = 0; i < count; ++i) out[i] = scale * widened[i];
    return;
  }
  for (size_t i = 0; i < count; ++i) out[i] += scale * widened[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {

HWY_EXPORT(NormalizeRow);
HWY_EXPORT(GatherRow);

namespace {

// Rows per task: a few microseconds of work.
constexpr int64_t kRowsPerTask = 16;

template <class Body>
void for_rows(CpuContext& context, int64_t rows, const Body& body) {
  context.parallel_for((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    const int64_t last = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < last; ++row) body(row);
  });
}

float* row_scratch(CpuContext& context, int64_t columns) {
  return reinterpret_cast<float*>(
      context.thread_scratch(static_cast<size_t>(columns) * sizeof(float)));
}

}  // namespace

void run(CpuContext& context, const NormArgs& args) {
  for_rows(context, args.in.rows, [&](int64_t row) {
    HWY_DYNAMIC_DISPATCH(NormalizeRow)(args, row, row_scratch(context, args.in.columns));
  });
}

void run(CpuContext& context, const ConvertArgs& args) {
  for_rows(context, args.in.rows, [&](int64_t row) {
    convert_elements(DType::kF32, args.in.row(row), args.out.dtype, args.out.row(row),
                     static_cast<size_t>(args.in.columns));
  });
}

void run(CpuContext& context, const ExpandArgs& args) {
  const auto columns = static_cast<size_t>(args.from.columns);
  const auto row_bytes =
      static_cast<int64_t>(format_row_bytes(args.from.format, args.from.columns));
  for_rows(context, args.from.rows, [&](int64_t row) {
    const WeightSlab& slab = args.from.slabs[static_cast<size_t>(row / args.from.slab_rows)];
    float* widened = row_scratch(context, args.from.columns);
    unpack_quantized_row(args.from.format, slab.data + row % args.from.slab_rows * row_bytes,
                         {widened, columns});
    convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(widened), args.out.dtype,
                     args.out.row(row), columns);
  });
}

void run(CpuContext& context, const GatherArgs& args) {
  const WeightMatrix& table = args.table;
  const auto row_bytes =
      static_cast<int64_t>(packed_bytes(table.layout, table.format, 1, table.columns));
  for_rows(context, static_cast<int64_t>(args.rows.size()), [&](int64_t i) {
    const int64_t row = args.rows[static_cast<size_t>(i)];
    const WeightSlab& slab = table.slabs[static_cast<size_t>(row / table.slab_rows)];
    HWY_DYNAMIC_DISPATCH(GatherRow)
    (table.format, slab.data + row % table.slab_rows * row_bytes,
     static_cast<size_t>(table.columns), args.scale, args.accumulate, args.out.f32(i),
     row_scratch(context, table.columns));
  });
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
