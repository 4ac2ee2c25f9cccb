// 4-bit numbers on the device; the format is base/q4.h's.
#pragma once

#include <cstdint>

#include "kernels/base/q4.h"
#include "kernels/cuda/kernel.h"

namespace spillway::cuda {

// Number `i` of a row of `count`.
__device__ inline float q4_row_value(const std::byte* row, int64_t i, int64_t count) {
  const int64_t group = i / kQ4Group, at = i % kQ4Group;
  const int64_t rest = count - group * kQ4Group;
  const int64_t size = rest < kQ4Group ? rest : kQ4Group;
  const int64_t words = (size + kQ4NibblesPerWord - 1) / kQ4NibblesPerWord;
  const std::byte* from = row + group * (4 + kQ4Group / 2);
  const auto* shared = reinterpret_cast<const __half*>(from);
  const uint32_t word = reinterpret_cast<const uint32_t*>(from + 4)[at % words];
  const uint32_t nibble = word >> (4 * (at / words)) & 15u;
  return fmaf(static_cast<float>(nibble), __half2float(shared[0]), __half2float(shared[1]));
}

// Quantises the next group of a row of which `rest` numbers are left, as quantize_q4() does, bit
// for bit. One thread.
__device__ inline void pack_q4_group(const float* from, int64_t rest, std::byte* to) {
  constexpr float kHalfMax = 65504.0f;
  const int64_t size = rest < kQ4Group ? rest : kQ4Group;
  const int64_t words = (size + kQ4NibblesPerWord - 1) / kQ4NibblesPerWord;
  float low = from[0], high = from[0], zero = 0;
  for (int64_t i = 0; i < size; ++i) {
    low = fminf(low, from[i]);
    high = fmaxf(high, from[i]);
    zero += from[i] * 0.0f;  // Stays 0 unless a value is NaN or infinite.
  }
  const bool damaged = zero != 0.0f;
  const __half minimum = __float2half_rd(fminf(fmaxf(low, -kHalfMax), kHalfMax));
  const float least = __half2float(minimum);
  const __half scale = __float2half_ru(fminf(fmaxf((high - least) / 15.0f, 0.0f), kHalfMax));
  const float step = __half2float(scale);
  const float inverse = step > 0.0f ? 1.0f / step : 0.0f;
  auto* shared = reinterpret_cast<__half*>(to);
  shared[0] = damaged ? __float2half_rn(0.0f) : scale;
  shared[1] = damaged ? __float2half_rn(NAN) : minimum;
  auto* packed = reinterpret_cast<uint32_t*>(to + 4);
  for (int64_t word = 0; word < words; ++word) {
    uint32_t nibbles = 0;
    for (int64_t i = word; i < size && !damaged; i += words) {
      const float steps = fminf(fmaxf((from[i] - least) * inverse, 0.0f), 15.0f);
      nibbles |= static_cast<uint32_t>(steps + 0.5f) << (4 * (i / words));
    }
    packed[word] = nibbles;
  }
}

}  // namespace spillway::cuda
