// A weight matrix packed from float32 for tests, cut into slabs of a chosen height.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/tensor.h"

namespace spillway::test {

class PackedMatrix {
 public:
  // `values` is row-major [rows, columns]. slab_rows: a multiple of 64, or at least `rows`.
  // `hadamard`: see pack_rows().
  PackedMatrix(MatrixLayout layout, Format format, const std::vector<float>& values, int64_t rows,
               int64_t columns, int64_t slab_rows, bool hadamard = false)
      : rounded_(values) {
    for (int64_t first = 0; first < rows; first += slab_rows) {
      const int64_t count = std::min(slab_rows, rows - first);
      bytes_.emplace_back(packed_bytes(layout, format, count, columns));
      pack_rows(layout, format, DType::kF32,
                reinterpret_cast<const std::byte*>(values.data() + first * columns), count, columns,
                bytes_.back().data(), nullptr, nullptr, hadamard);
      slabs_.push_back({bytes_.back().data(), count});
    }
    if (is_quantized(format)) {
      expand(layout, format, rows, columns, slab_rows);
    } else {
      round(element_of(format), values);
    }
    matrix_ = {slabs_, format, layout, rows, columns, std::min(slab_rows, rows)};
    matrix_.hadamard = hadamard;
  }
  PackedMatrix(const PackedMatrix&) = delete;
  PackedMatrix& operator=(const PackedMatrix&) = delete;

  const WeightMatrix& matrix() const { return matrix_; }
  const std::vector<float>& rounded() const { return rounded_; }  // What the format kept.

 private:
  void round(DType type, const std::vector<float>& values) {
    std::vector<std::byte> narrow(values.size() * dtype_bytes(type));
    convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), type,
                     narrow.data(), values.size());
    convert_elements(type, narrow.data(), DType::kF32,
                     reinterpret_cast<std::byte*>(rounded_.data()), values.size());
  }
  void expand(MatrixLayout layout, Format format, int64_t rows, int64_t columns,
              int64_t slab_rows) {
    for (size_t i = 0; i < slabs_.size(); ++i) {
      const int64_t first = static_cast<int64_t>(i) * slab_rows;
      unpack_rows(layout, format, bytes_[i].data(), std::min(slab_rows, rows - first), columns,
                  reinterpret_cast<std::byte*>(rounded_.data() + first * columns));
    }
  }

  std::vector<std::vector<std::byte>> bytes_;
  std::vector<WeightSlab> slabs_;
  std::vector<float> rounded_;
  WeightMatrix matrix_;
};

}  // namespace spillway::test
