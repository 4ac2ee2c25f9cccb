// Non-owning views of matrices: address, format, shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/format.h"
#include "kernels/weight_layout.h"

namespace spillway {

// Row-major [rows, columns]; rows lie `stride` elements apart.
struct ConstMatrixView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  const std::byte* row(int64_t index) const {
    return data + static_cast<size_t>(index * stride) * dtype_bytes(dtype);
  }
};

struct MatrixView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  std::byte* row(int64_t index) const {
    return data + static_cast<size_t>(index * stride) * dtype_bytes(dtype);
  }
  // REQUIRES: dtype is kF32.
  float* f32(int64_t index) const { return reinterpret_cast<float*>(row(index)); }
  MatrixView slice_rows(int64_t first, int64_t count) const {
    return {row(first), dtype, count, columns, stride};
  }
  MatrixView slice_columns(int64_t first, int64_t count) const {
    return {data + static_cast<size_t>(first) * dtype_bytes(dtype), dtype, rows, count, stride};
  }
  operator ConstMatrixView() const { return {data, dtype, rows, columns, stride}; }
};

inline MatrixView dense_matrix(std::byte* data, DType dtype, int64_t rows, int64_t columns) {
  return {data, dtype, rows, columns, columns};
}

// One slab of a weight matrix: the unit of placement, so that no weight ever needs one large
// allocation and the slabs of one matrix may lie in different tiers.
struct WeightSlab {
  const std::byte* data = nullptr;
  int64_t rows = 0;
};

// A weight matrix [rows, columns] as consecutive slabs. All slabs but the last have `slab_rows`.
// `finite`: its model is known to hold no NaN and no infinity; otherwise matrix products with it
// propagate NaN even where that costs time. `hadamard`: its columns were multiplied by Hadamard
// matrices (input_hadamard.h), as linear() multiplies its inputs then.
struct WeightMatrix {
  std::span<const WeightSlab> slabs;
  Format format = Format::kF32;
  MatrixLayout layout = MatrixLayout::kRows;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t slab_rows = 0;
  bool finite = false;
  bool hadamard = false;
};

}  // namespace spillway
