// Parts of the row-wise ops (rows.cc) that others work with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace spillway::cpu {

// Columns [column, column + width) of what the norm makes of `row`, which is f32 and of its
// in.columns: to `out` in `dtype`, kF32 or kBF16. `numbers` has room for `width` floats; it is not
// used for kF32. A column has the bits that normalize() gives it.
void normalize_part(const NormArgs& norm, const std::byte* row, int64_t column, int64_t width,
                    DType dtype, float* numbers, std::byte* out);

}  // namespace spillway::cpu
