// Matrix product of float32 activations with 4-bit weights (base/q4.h): bit for bit the f32
// kernel's result on the expanded weights.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway::cpu {

// multiply_tile() with 4-bit panels.
void multiply_q4_tile(const float* packed_a, int64_t rows, int64_t columns, const std::byte* panels,
                      bool accumulate, float* c);

}  // namespace spillway::cpu
