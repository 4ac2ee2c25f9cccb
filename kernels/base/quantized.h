// Numbers of few bits in groups (is_grouped() formats of format.h). Neighbours, along a weight's
// inputs or a head's columns, are a group: they share a float16 scale and minimum, and each has a
// code n of 0 to 2^bits - 1. The number it stands for IS the float32
//
//   n * scale + minimum        scale and minimum widened to float32
//
// whose product is exact (8 by 11 bits at most), so that one rounding gives it, with a fused
// multiply-add or without. Every kernel uses this number: a product of float32 activations with
// quantised weights is bit for bit the product with the expanded float32 weights. (With bf16
// activations, sums over n and over the activations of a group are scaled instead, cpu/gemm_bf16.h:
// the same number, another order of additions.)
//
//   q4     4 bits, groups of 64: 4.5 bits a number
//   q4_1   4 bits, groups of 32: 5 bits; as ggml's Q4_1, so that GGUF's 4-bit blocks keep theirs
//   q8_1   8 bits, groups of 32: 9 bits; holds ggml's Q8_0 and 5-bit blocks
//
// A row of `count` numbers, as tables and the KV cache hold them, is its groups one after another,
// the last as short as the rest of the row. With F = 32 / bits numbers in a word, a group of g
// numbers has W = ceil(g / F) words:
//
//   float16 scale, float16 minimum, W little-endian 32-bit words
//
// and number i is field i / W (0 the lowest) of word i % W. So a whole group's words, side by side
// in lanes, shifted right by bits * j, are the numbers W j to W j + W - 1. The matrix layout is in
// weight_layout.h.
//
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/format.h"

namespace spillway {

// A quantised format as constants, for kernels.
template <Format kOf>
struct QuantTraits {
  static constexpr Format kFormat = kOf;
  static constexpr int kBits = format_traits(kOf).bits;
  static constexpr int64_t kGroup = format_traits(kOf).group;
  static constexpr int64_t kFields = 32 / kBits;        // Numbers in a word
  static constexpr int64_t kWords = kGroup / kFields;   // Words of a whole group
  static constexpr uint32_t kMask = (1u << kBits) - 1;  // The largest code
  static constexpr int64_t kGroupBytes = 4 + kWords * 4;
};

// Calls body(QuantTraits<format>{}). REQUIRES: is_grouped(format).
template <class Body>
decltype(auto) with_quant_traits(Format format, Body&& body) {
  switch (format) {
    case Format::kQ4_1:
      return std::forward<Body>(body)(QuantTraits<Format::kQ4_1>{});
    case Format::kQ8_1:
      return std::forward<Body>(body)(QuantTraits<Format::kQ8_1>{});
    default:
      SPILLWAY_CHECK(format == Format::kQ4);
      return std::forward<Body>(body)(QuantTraits<Format::kQ4>{});
  }
}

constexpr int64_t kGroupMax = 64;  // The most numbers in a group of any grouped format

// Scale and minimum of a group, as float16 bits.
struct GroupScale {
  uint16_t scale = 0;
  uint16_t minimum = 0;
};

// The number that a code stands for; scale and minimum widened.
inline float quantized_value(uint32_t code, float scale, float minimum) {
  return static_cast<float>(code) * scale + minimum;
}

// Quantises one group of 1 to kGroupMax numbers to codes of `bits`, 4 or 8. The minimum is the
// lowest number rounded down to float16, the scale the rest of the range over the largest code
// rounded up, so that no number lies outside and the error is at most half the scale (and a float32
// rounding). Beyond float16 it saturates: numbers below -65504 or further above the minimum than
// the codes reach become the nearest the group can hold. With a NaN or an infinity in it the whole
// group is NaN: damage stays visible.
GroupScale quantize_group(int bits, std::span<const float> values, uint8_t* codes);

// The scale and the minimum of such a group by its lowest and highest number. REQUIRES: neither is
// NaN or infinite.
GroupScale group_scale(int bits, float lowest, float highest);

// Adds the errors of a group that was quantised to codes of `bits`.
void add_group_error(int bits, std::span<const float> values, const GroupScale& scale,
                     const uint8_t* codes, QuantError* error);

// Writes one group of a row as it lies in memory. REQUIRES: codes are below 2^bits of the format.
void store_group(Format format, std::span<const uint8_t> codes, const GroupScale& scale,
                 std::byte* to);

// Its inverse: reads the codes of a group of codes.size() numbers.
GroupScale load_group(Format format, const std::byte* from, std::span<uint8_t> codes);

}  // namespace spillway
