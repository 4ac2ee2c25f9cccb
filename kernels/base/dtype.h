// Arithmetic types, and the scalar conversions between them (round to nearest even). Storage
// formats are a Format (format.h).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace spillway {

enum class DType : uint8_t { kF32, kBF16, kF16 };

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "?";
}

// Bytes of one element.
constexpr size_t dtype_bytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
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

// Converts `count` elements. Any alignment; no overlap.
void convert_elements(DType from, const std::byte* source, DType to, std::byte* target,
                      size_t count);

}  // namespace spillway
