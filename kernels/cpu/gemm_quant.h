// Matrix product of float32 activations with quantised weights (base/quantized.h): bit for bit the
// f32 kernel's result on the expanded weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"

namespace spillway::cpu {

// multiply_tile() with panels of a quantised format.
void multiply_quantized_tile(const float* packed_a, int64_t rows, int64_t columns, Format format,
                             const std::byte* panels, bool accumulate, float* c);

}  // namespace spillway::cpu
