// Storage formats: how the numbers of weights and of the KV cache lie in memory and in packed
// files, and one table of their traits. Arithmetic types are a DType (dtype.h); a plain format
// stores the numbers of one DType side by side. A quantised one stores few bits that kernels expand
// or multiply as they are: groups with a scale and a minimum each (quantized.h), or whole rows with
// one scale each (quantized_rows.h).
//
// A new format has a value, a row in the table and a place in kFormats here. One of groups then
// has a case in with_quant_traits() (quantized.h), for which rows, panels and kernels are compiled,
// and may need kernels of its own where its bits are new: cpu/gemm_bf16_quant.cc,
// cpu/gemm_int8_inl.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"

namespace spillway {

// The quantised ones: kQ4, kQ4_1 and kQ8_1 are groups along the input dimension, each with a
// float16 scale and minimum; kQ8 is signed 8-bit integers, one float32 scale a row (an output
// channel of a matrix, a token of a table, a head's row of the KV cache).
enum class Format : uint8_t { kF32, kBF16, kF16, kQ4, kQ4_1, kQ8_1, kQ8 };

constexpr int64_t kWholeRow = 0;  // In place of a number of neighbours

struct FormatTraits {
  std::string_view name;         // In flags, JSON and packed files
  std::optional<DType> element;  // Plain formats only; a quantised one has none
  int bits = 0;                  // Bits per number
  int64_t group = 1;             // Neighbours that share a scale, or kWholeRow; 1: none do
  bool kv_cache = true;          // Whether the KV cache may use it
};

constexpr FormatTraits kFormatTraits[] = {{"f32", DType::kF32, 32},
                                          {"bf16", DType::kBF16, 16},
                                          {"f16", DType::kF16, 16},
                                          {"q4", std::nullopt, 4, 64},
                                          {"q4_1", std::nullopt, 4, 32, false},
                                          {"q8_1", std::nullopt, 8, 32, false},
                                          {"q8", std::nullopt, 8, kWholeRow}};

constexpr Format kFormats[] = {Format::kF32,  Format::kBF16, Format::kF16, Format::kQ4,
                               Format::kQ4_1, Format::kQ8_1, Format::kQ8};
constexpr size_t kFormatCount = std::size(kFormats);
static_assert(std::size(kFormatTraits) == kFormatCount);

constexpr const FormatTraits& format_traits(Format format) {
  return kFormatTraits[static_cast<size_t>(format)];
}

constexpr std::string_view format_name(Format format) {
  return format_traits(format).name;
}

constexpr std::optional<Format> format_of_name(std::string_view name) {
  for (const Format format : kFormats) {
    if (format_name(format) == name) return format;
  }
  return std::nullopt;
}

// The formats that a search of plans tries beside the one that the user named.
constexpr Format kSearchedFormats[] = {Format::kQ8, Format::kQ4};

// All names, or those that the KV cache may have, joined by `separator`, and by `last` before the
// final one if that is given: "f32|bf16|f16|q4|q4_1|q8_1|q8".
std::string format_names(std::string_view separator, std::string_view last = {},
                         bool kv_cache = false);

constexpr bool is_quantized(Format format) {
  return !format_traits(format).element;
}

// Whether it is quantised in groups (quantized.h).
constexpr bool is_grouped(Format format) {
  return is_quantized(format) && format_traits(format).group != kWholeRow;
}

// Whether a CPU can multiply with weights of this format by activations in 8 bits
// (cpu/gemm_int8.h): those of 4 bits, and those of 8 bits with one scale a row.
constexpr bool takes_int8(Format format) {
  return (is_grouped(format) && format_traits(format).bits == 4) || format == Format::kQ8;
}

// Whether a model may have weights of both formats: quantised ones, whose activations are alike.
constexpr bool goes_beside(Format a, Format b) {
  return is_quantized(a) && is_quantized(b);
}

// The type of the stored numbers. REQUIRES: not quantised.
constexpr DType element_of(Format format) {
  SPILLWAY_CHECK(!is_quantized(format));
  return *format_traits(format).element;
}

// The format that stores numbers of this type as they are.
constexpr Format plain_format(DType element) {
  for (const Format format : kFormats) {
    if (format_traits(format).element == element) return format;
  }
  SPILLWAY_CHECK(false);
  return Format::kF32;
}

// Type of unpacked numbers: the stored type, or float32 for quantised formats.
constexpr DType unpacked_type(Format format) {
  return format_traits(format).element.value_or(DType::kF32);
}

// Type that a GPU computes in with weights of this format: plain ones are multiplied in their own
// type (float32 is for comparisons), quantised ones in bf16, or in f16 where tensor cores have
// nothing else. On a CPU it depends on the instructions (Device::activation_dtype).
constexpr DType gpu_activation_dtype(Format weights, bool native_bf16) {
  return format_traits(weights).element.value_or(native_bf16 ? DType::kBF16 : DType::kF16);
}

// Bytes of a row of `count` numbers: neighbours in memory or, quantised, groups one after another,
// each a float16 scale and minimum and as many 32-bit words as its numbers fill; of a format with
// one scale a row, a float32 and so many words.
constexpr size_t format_row_bytes(Format format, int64_t count) {
  const FormatTraits& traits = format_traits(format);
  if (traits.element) return static_cast<size_t>(count) * dtype_bytes(*traits.element);
  const auto group_bytes = [&](int64_t numbers) {
    return numbers == 0 ? 0 : 4 + (numbers * traits.bits + 31) / 32 * 4;
  };
  if (traits.group == kWholeRow) return static_cast<size_t>(group_bytes(count));
  return static_cast<size_t>(count / traits.group * group_bytes(traits.group) +
                             group_bytes(count % traits.group));
}

// Quantisation error, as sums, so that the errors of parts can be added.
struct QuantError {
  double error_squares = 0;
  double value_squares = 0;
  double error_max = 0;    // The largest |error|.
  uint64_t saturated = 0;  // Numbers beyond what float16 scales and minima reach

  void add(const QuantError& other) {
    error_squares += other.error_squares;
    value_squares += other.value_squares;
    error_max = std::max(error_max, other.error_max);
    saturated += other.saturated;
  }
  // Root of the mean squared error over that of the values; 0 when all values are 0.
  double relative_rms() const {
    return value_squares > 0 ? std::sqrt(error_squares / value_squares) : 0;
  }
};

// Quantises `values` into a row of format_row_bytes(); adds the error to `error` unless it is null.
// REQUIRES: is_quantized(format).
void pack_quantized_row(Format format, std::span<const float> values, std::byte* row,
                        QuantError* error = nullptr);
void unpack_quantized_row(Format format, const std::byte* row, std::span<float> values);

}  // namespace spillway
