// The linear layer on the CPU: our panel kernels with a fused epilogue, or oneDNN.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn.h"

namespace spillway::cpu {

namespace {

// Packed activations of one pass over the weights: bounds scratch memory, and keeps what all
// threads read again for each panel inside a usual L3 cache.
constexpr int64_t kPackedBytesMax = int64_t{16} << 20;

// Rows of one pass: whole blocks of kGemmRowsMax, at least one.
int64_t rows_per_pass(int64_t columns) {
  const int64_t rows = kPackedBytesMax / (columns * static_cast<int64_t>(sizeof(float)));
  return std::max(kGemmRowsMax, rows / kGemmRowsMax * kGemmRowsMax);
}

// The pass's rows as strips: block b of 96 rows starts at float b * 96 * columns.
void pack_pass(CpuContext& context, const ConstMatrixView& in, float* packed) {
  const auto* source = reinterpret_cast<const float*>(in.data);
  // A task packs whole strips; 24 rows are a whole number of strips of 3, 6 and 12 rows.
  constexpr int64_t kRowsPerTask = 24;
  static_assert(kGemmRowsMax % kRowsPerTask == 0);
  context.parallel_for((in.rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    const int64_t first = task * kRowsPerTask;
    pack_strips(source + first * in.stride, in.stride, std::min(kRowsPerTask, in.rows - first),
                in.columns, packed + first * in.columns);
  });
}

// One slab's 64 columns starting at `column` (of the slab), all rows of the pass.
void multiply_columns(const LinearArgs& args, const WeightSlab& slab, int64_t slab_first,
                      int64_t column, const float* packed, const MatrixView& out) {
  const WeightMatrix& w = args.weight;
  alignas(64) float tile[kGemmRowsMax * kGemmColumns];
  const auto stride = static_cast<int64_t>(
      packed_bytes(MatrixLayout::kPanels16, w.format, kGemmColumns, w.columns));
  const std::byte* panels = slab.data + column / kGemmColumns * stride;
  const int64_t columns = std::min(kGemmColumns, slab.rows - column);
  const int64_t first = slab_first + column;
  for (int64_t row = 0; row < out.rows; row += kGemmRowsMax) {
    const int64_t rows = std::min(kGemmRowsMax, out.rows - row);
    multiply_tile(packed + row * w.columns, rows, w.columns, w.format, panels, false, tile);
    store_tile({.tile = tile,
                .rows = rows,
                .columns = columns,
                .bias = args.bias == nullptr ? nullptr : args.bias + first,
                .activation = args.activation,
                .accumulate = args.accumulate,
                .out = out.row(row) + static_cast<size_t>(first) * dtype_bytes(out.dtype),
                .out_dtype = out.dtype,
                .out_stride = out.stride});
  }
}

void linear_panels(CpuContext& context, const LinearArgs& args) {
  SPILLWAY_CHECK(args.in.dtype == DType::kF32);
  const WeightMatrix& w = args.weight;
  const int64_t pass_rows = std::min(rows_per_pass(w.columns), args.in.rows);
  auto* packed = reinterpret_cast<float*>(
      context.shared_scratch(static_cast<size_t>(pass_rows * w.columns) * sizeof(float)));
  for (int64_t first = 0; first < args.in.rows; first += pass_rows) {
    ConstMatrixView in = args.in;
    in.data = args.in.row(first);
    in.rows = std::min(pass_rows, args.in.rows - first);
    const MatrixView out = args.out.slice_rows(first, in.rows);
    pack_pass(context, in, packed);
    const int64_t tiles_per_slab = (w.slab_rows + kGemmColumns - 1) / kGemmColumns;
    context.parallel_for((w.rows + kGemmColumns - 1) / kGemmColumns, [&](int64_t task) {
      const auto slab = static_cast<size_t>(task / tiles_per_slab);
      multiply_columns(args, w.slabs[slab], static_cast<int64_t>(slab) * w.slab_rows,
                       task % tiles_per_slab * kGemmColumns, packed, out);
    });
  }
}

}  // namespace

void linear(CpuContext& context, const LinearArgs& args) {
  SPILLWAY_CHECK(args.weight.slabs.size() == 1 || args.weight.slab_rows % kPanelRowMultiple == 0);
  if (args.weight.layout == MatrixLayout::kPanels16) {
    linear_panels(context, args);
  } else {
    SPILLWAY_CHECK(args.weight.layout == MatrixLayout::kPanels64 && context.onednn() != nullptr);
    context.onednn()->linear(args);
  }
}

}  // namespace spillway::cpu
