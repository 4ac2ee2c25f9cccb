// Rows of signed 8-bit integers with one scale (Format::kQ8), symmetric around zero:
//
//   scale = max |x| / 127 (at most kQ8ScaleMax), code = x / scale rounded to nearest even, -127 to
//   127
//
// and a code n stands for the float32 n * scale, rounded once: the product of 7 and 24 bits. With
// one scale for all inputs of an output, a matrix product is a sum of integers that is scaled once
// at its end (LLM.int8(), arXiv 2208.07339, section 2.1), which a CPU's and a GPU's 8-bit products
// compute.
//
// A row of `count` numbers, as tables and the KV cache hold it:
//
//   float32 scale, int8 code[count], zeros to a multiple of 4 bytes
//
// The matrix layout is in weight_layout.h. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/format.h"

namespace spillway {

constexpr float kQ8CodeMax = 127.0f;
constexpr float kQ8ScaleMax = 0x1.020406p+121f;  // The largest that 127 times it is finite

// Quantises a row and returns its scale. Zeros have the scale 0, and so have rows whose numbers are
// so small (below 1e-43) that a scale would be. With a NaN or an infinity in it the scale of the
// row is NaN, and with it each of its numbers: damage stays visible.
float quantize_q8_row(std::span<const float> values, int8_t* codes);

// Adds the errors of a row that was quantised so.
void add_q8_error(std::span<const float> values, float scale, const int8_t* codes,
                  QuantError* error);

// The number that a code stands for.
inline float q8_value(int8_t code, float scale) {
  return static_cast<float>(code) * scale;
}

// pack_quantized_row() and unpack_quantized_row() (format.h) of this format.
void pack_q8_row(std::span<const float> values, std::byte* row, QuantError* error);
void unpack_q8_row(const std::byte* row, std::span<float> values);

}  // namespace spillway
