#include "kernels/base/dtype.h"

namespace spillway {

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  }
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // A subnormal half is mantissa * 2^-24, which a float holds exactly.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // Rounds past 65504.
  if (magnitude < 0x38800000u) {
    // Adding 0.5 lets the float adder round to a multiple of 2^-24, the subnormal half's unit.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

namespace {

float load(DType dtype, const std::byte* source, size_t index) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, source + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, source + index * 2, 2);
  return dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

void store(DType dtype, std::byte* target, size_t index, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(target + index * 4, &value, 4);
    return;
  }
  const uint16_t bits = dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
  std::memcpy(target + index * 2, &bits, 2);
}

}  // namespace

void convert_elements(DType from, const std::byte* source, DType to, std::byte* target,
                      size_t count) {
  if (from == to) {
    if (count != 0) std::memcpy(target, source, count * dtype_bytes(from));
    return;
  }
  for (size_t i = 0; i < count; ++i) store(to, target, i, load(from, source, i));
}

}  // namespace spillway
