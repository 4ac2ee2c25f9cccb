// The ops that work row by row: LayerNorm and RMSNorm, table look-up, conversion.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows.h"

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

void NormalizePart(const NormArgs& args, const std::byte* row, int64_t column, int64_t width,
                   DType dtype, float* HWY_RESTRICT numbers, std::byte* out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const auto all = static_cast<size_t>(args.in.columns), count = static_cast<size_t>(width);
  const auto* const of_row = reinterpret_cast<const float*>(row);
  const bool centred = args.kind == NormKind::kLayerNorm;
  const float mean = centred ? sum_of(of_row, all) / static_cast<float>(all) : 0.0f;
  const float variance = squares_of(of_row, all, mean) / static_cast<float>(all);
  const V scale = hn::Set(d, 1.0f / std::sqrt(variance + args.epsilon));
  const V m = hn::Set(d, mean);
  const float* const x = of_row + column;
  const float* const weight = args.weight == nullptr ? nullptr : args.weight + column;
  const float* const bias = args.bias == nullptr ? nullptr : args.bias + column;
  float* const to = dtype == DType::kF32 ? reinterpret_cast<float*>(out) : numbers;
  for (size_t i = 0; i < count; i += lanes) {
    V v = hn::Mul(hn::Sub(load_up_to(d, x + i, count - i), m), scale);
    if (weight != nullptr) v = hn::Mul(v, load_up_to(d, weight + i, count - i));
    if (bias != nullptr) v = hn::Add(v, load_up_to(d, bias + i, count - i));
    store_up_to(d, v, to + i, count - i);
  }
  if (dtype != DType::kF32) store_row(dtype, numbers, count, out);
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

HWY_EXPORT(NormalizePart);
HWY_EXPORT(GatherRow);

namespace {

template <class Body>
void for_rows(CpuContext& context, int64_t rows, const Body& body) {
  const int64_t task_rows = context.task_rows(rows, 16);  // A few microseconds of work
  context.parallel_for((rows + task_rows - 1) / task_rows, [&](int64_t task) {
    const int64_t last = std::min(rows, (task + 1) * task_rows);
    for (int64_t row = task * task_rows; row < last; ++row) body(row);
  });
}

float* row_scratch(CpuContext& context, int64_t columns) {
  return reinterpret_cast<float*>(
      context.thread_scratch(static_cast<size_t>(columns) * sizeof(float)));
}

}  // namespace

void normalize_part(const NormArgs& norm, const std::byte* row, int64_t column, int64_t width,
                    DType dtype, float* numbers, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(NormalizePart)(norm, row, column, width, dtype, numbers, out);
}

void run(CpuContext& context, const NormArgs& args) {
  for_rows(context, args.in.rows, [&](int64_t row) {
    normalize_part(args, args.in.row(row), 0, args.in.columns, args.out.dtype,
                   row_scratch(context, args.in.columns), args.out.row(row));
  });
}

void run(CpuContext& context, const ConvertArgs& args) {
  for_rows(context, args.in.rows, [&](int64_t row) {
    convert_elements(args.in.dtype, args.in.row(row), args.out.dtype, args.out.row(row),
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
