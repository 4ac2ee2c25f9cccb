// Matrix product of float32 activations with quantised weights. Of weights in groups
// (base/quantized.h) it is bit for bit the f32 kernel's result on the expanded weights; of rows
// with one scale (base/quantized_rows.h) that of the codes as float32, times the scale: no weight
// is rounded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"

namespace spillway::cpu {

// multiply_tile() with panels of a quantised format.
void multiply_quantized_tile(const float* packed_a, int64_t rows, int64_t columns, Format format,
                             const std::byte* panels, float* c);

}  // namespace spillway::cpu
