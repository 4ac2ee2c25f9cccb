// Number formats, and the scalar conversions between them (round to nearest even).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "kernels/base/check.h"

namespace spillway {

// kQ4: groups of 64 along the input dimension, each with a float16 scale and minimum (q4.h); its
// bytes are counted by the layouts that hold it, not here.
enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kQ4 };

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kQ4:
      return "q4";
  }
  return "?";
}

constexpr std::optional<DType> dtype_of_name(std::string_view name) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kQ4}) {
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// Bytes of one element. REQUIRES: not kQ4.
constexpr size_t dtype_bytes(DType dtype) {
  SPILLWAY_CHECK(dtype != DType::kQ4);
  return dtype == DType::kBF16 || dtype == DType::kF16 ? 2 : 4;
}

inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x40u);  // NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);  // Overflow becomes infinity.

// Converts `count` elements between kF32, kBF16 and kF16. Any alignment; no overlap.
void convert_elements(DType from, const std::byte* source, DType to, std::byte* target,
                      size_t count);

}  // namespace spillway
