// 4-bit numbers (Format::kQ4). Up to 64 neighbours, along a weight's inputs or a head's columns,
// are a group: they share a float16 scale and minimum, and each has a nibble n of 0 to 15. The
// number it stands for IS the float32
//
//   n * scale + minimum        scale and minimum widened to float32
//
// whose product is exact (4 by 11 bits), so that one rounding gives it, with a fused multiply-add
// or without. Every kernel uses this number: a product of float32 activations with 4-bit weights is
// bit for bit the product with the expanded float32 weights. (With bf16 activations, sums over n
// and over the activations of a group are scaled instead, cpu/gemm_bf16.h: the same number, another
// order of additions.)
//
// A row of `count` numbers, as tables and the KV cache hold them, is its groups one after another,
// the last as short as the rest of the row. A group of g numbers has W = ceil(g / 8) words:
//
//   float16 scale, float16 minimum, W little-endian 32-bit words
//
// and number i is nibble i / W (0 the lowest) of word i % W. So a whole group's words, in 8 lanes,
// shifted right by 4 j, are the numbers 8 j to 8 j + 7. The matrix layout is in weight_layout.h.
//
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/format.h"

namespace spillway {

constexpr int64_t kQ4Group = format_traits(Format::kQ4).group;
constexpr int64_t kQ4NibblesPerWord = 8;

// Scale and minimum of a group, as float16 bits.
struct Q4Scale {
  uint16_t scale = 0;
  uint16_t minimum = 0;
};

// The number that a nibble stands for; scale and minimum widened.
inline float q4_value(uint32_t nibble, float scale, float minimum) {
  return static_cast<float>(nibble) * scale + minimum;
}

// Quantises one group of 1 to 64 numbers. The minimum is the lowest number rounded down to float16,
// the scale a 15th of the rest of the range rounded up, so that no number lies outside and the
// error is at most half the scale (and a float32 rounding). Beyond float16 it saturates: numbers
// below -65504 or more than 15 * 65504 above the minimum become the nearest the group can hold.
// With a NaN or an infinity in it the whole group is NaN: damage stays visible.
Q4Scale quantize_q4(std::span<const float> values, uint8_t* nibbles);

// Adds the errors of a group that was quantised.
void add_q4_error(std::span<const float> values, const Q4Scale& scale, const uint8_t* nibbles,
                  QuantError* error);

// Bytes of a row, a multiple of 4.
constexpr size_t q4_row_bytes(int64_t count) {
  return format_row_bytes(Format::kQ4, count);
}

// The error is added to `error` unless it is null.
void pack_q4_row(std::span<const float> values, std::byte* row, QuantError* error = nullptr);
void unpack_q4_row(const std::byte* row, std::span<float> values);

}  // namespace spillway
