#include "kernels/base/quantized_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace spillway {

namespace {

// The largest magnitude, or NaN where a number is NaN or infinite. Eight chains of plain pointers,
// so that the compiler vectorises the loop.
float magnitude_of(const float* value, size_t count) {
  constexpr size_t kChains = 8;
  float most[kChains] = {};
  float zero[kChains] = {};  // Stays 0 unless a number is NaN or infinite.
  size_t at = 0;
  for (; at + kChains <= count; at += kChains) {
    for (size_t j = 0; j < kChains; ++j) {
      const float x = value[at + j];
      const float magnitude = x < 0 ? -x : x;
      most[j] = most[j] < magnitude ? magnitude : most[j];
      zero[j] += x * 0.0f;
    }
  }
  for (; at < count; ++at) {
    most[0] = std::max(most[0], std::abs(value[at]));
    zero[0] += value[at] * 0.0f;
  }
  if (std::any_of(zero, zero + kChains, [](float z) { return z != 0.0f; })) return NAN;
  return *std::max_element(most, most + kChains);
}

}  // namespace

float quantize_q8_row(std::span<const float> values, int8_t* codes) {
  const float* const value = values.data();
  const size_t count = values.size();
  const float quotient = magnitude_of(value, count) / kQ8CodeMax;
  if (!(quotient > 0)) {  // 0 or NaN
    std::fill_n(codes, count, int8_t{0});
    return quotient;
  }
  const float scale = std::min(quotient, kQ8ScaleMax);
  // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the lowest bits.
  constexpr float kToInteger = 12582912.0f;
  for (size_t i = 0; i < count; ++i) {
    const float steps = value[i] / scale;
    // The quotient of a subnormal scale may be above 127.
    const float inside = steps < -kQ8CodeMax  ? -kQ8CodeMax
                         : kQ8CodeMax < steps ? kQ8CodeMax
                                              : steps;
    const auto bits = std::bit_cast<uint32_t>(inside + kToInteger);
    codes[i] = static_cast<int8_t>(bits - std::bit_cast<uint32_t>(kToInteger));
  }
  return scale;
}

void add_q8_error(std::span<const float> values, float scale, const int8_t* codes,
                  QuantError* error) {
  if (!std::isfinite(scale)) return;  // Damaged: counted as such, not as an error.
  for (size_t i = 0; i < values.size(); ++i) {
    const double off = std::abs(double{q8_value(codes[i], scale)} - double{values[i]});
    error->error_squares += off * off;
    error->value_squares += double{values[i]} * double{values[i]};
    error->error_max = std::max(error->error_max, off);
  }
}

void pack_q8_row(std::span<const float> values, std::byte* row, QuantError* error) {
  auto* const codes = reinterpret_cast<int8_t*>(row + sizeof(float));
  const float scale = quantize_q8_row(values, codes);
  if (error != nullptr) add_q8_error(values, scale, codes, error);
  std::memcpy(row, &scale, sizeof(scale));
  const size_t bytes = format_row_bytes(Format::kQ8, static_cast<int64_t>(values.size()));
  std::fill(codes + values.size(), reinterpret_cast<int8_t*>(row + bytes), int8_t{0});
}

void unpack_q8_row(const std::byte* row, std::span<float> values) {
  float scale;
  std::memcpy(&scale, row, sizeof(scale));
  const auto* const codes = reinterpret_cast<const int8_t*>(row + sizeof(scale));
  float* const value = values.data();
  for (size_t i = 0; i < values.size(); ++i) value[i] = q8_value(codes[i], scale);
}

}  // namespace spillway
