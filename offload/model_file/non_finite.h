// Counting NaN and infinity in weights: a healthy checkpoint has none. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/format.h"
#include "kernels/convert_numbers.h"
#include "kernels/weight_layout.h"

namespace spillway {

// Counts in `bytes` of any alignment; a tail shorter than one element is ignored.
NonFinite count_non_finite(DType dtype, std::span<const std::byte> bytes);

// Counts, in a packed matrix or table of a quantised format, the numbers (without padding) of
// groups or rows whose scale or minimum is NaN or infinite, all as NaN. REQUIRES:
// is_quantized(format); layout_holds(layout, format).
NonFinite count_non_finite_quantized(MatrixLayout layout, Format format, int64_t rows,
                                     int64_t columns, std::span<const std::byte> packed);

}  // namespace spillway
