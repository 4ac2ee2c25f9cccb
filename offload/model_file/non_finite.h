// Counting NaN and infinity in weights: a healthy checkpoint has none. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"
#include "kernels/weight_layout.h"

namespace spillway {

struct NonFinite {
  uint64_t nan = 0;
  uint64_t inf = 0;

  uint64_t total() const { return nan + inf; }
  NonFinite& operator+=(const NonFinite& other) {
    nan += other.nan;
    inf += other.inf;
    return *this;
  }
};

// Any alignment; a rest shorter than one element is ignored. REQUIRES: kF32, kBF16 or kF16.
NonFinite count_non_finite(DType dtype, std::span<const std::byte> bytes);

// Of a packed kQ4 matrix or table: the numbers, padding left out, of the groups whose scale or
// minimum is NaN or infinite, all counted as NaN. REQUIRES: layout_holds(layout, kQ4).
NonFinite count_non_finite_q4(MatrixLayout layout, int64_t rows, int64_t columns,
                              std::span<const std::byte> packed);

}  // namespace spillway
