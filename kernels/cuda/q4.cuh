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

// Eight numbers of a group: nibble `shift` / 4 of each of the words that eight neighbouring lanes
// hold, one each. Same bits as q4_row_value(). Called by all lanes of a warp.
__device__ inline void q4_expand_word(uint32_t word, int shift, float scale, float minimum,
                                      float (&to)[kQ4NibblesPerWord]) {
  constexpr uint32_t kTwoTo23 = 0x4b000000u;  // A float whose last bit is worth 1
  const int first = threadIdx.x % kWarp / kQ4NibblesPerWord * kQ4NibblesPerWord;
  SPILLWAY_UNROLL
  for (int i = 0; i < kQ4NibblesPerWord; ++i) {
    const uint32_t nibble = __shfl_sync(0xffffffffu, word, first + i) >> shift & 15u;
    to[i] = fmaf(__uint_as_float(nibble | kTwoTo23) - 8388608.0f, scale, minimum);
  }
}

// Quantises the next group of a row of which `rest` numbers are left, as quantize_q4() does, bit
// for bit. Called by all lanes of a warp, two numbers each.
__device__ inline void pack_q4_group(const float* from, int64_t rest, std::byte* to) {
  constexpr float kHalfMax = 65504.0f;
  static_assert(kQ4Group == 2 * kWarp);
  const int lane = threadIdx.x % kWarp;
  const int size = rest < kQ4Group ? static_cast<int>(rest) : static_cast<int>(kQ4Group);
  const int words = (size + kQ4NibblesPerWord - 1) / kQ4NibblesPerWord;
  const bool has[2] = {lane < size, lane + kWarp < size};
  // The first number stands in for missing ones.
  const float x[2] = {from[has[0] ? lane : 0], from[has[1] ? lane + kWarp : 0]};
  // Not 0 where a value is NaN or infinite.
  const bool damaged = __any_sync(0xffffffffu, x[0] * 0.0f != 0.0f || x[1] * 0.0f != 0.0f);
  const float low = -warp_max(-fminf(x[0], x[1])), high = warp_max(fmaxf(x[0], x[1]));
  const __half minimum = __float2half_rd(fminf(fmaxf(low, -kHalfMax), kHalfMax));
  const float least = __half2float(minimum);
  const __half scale = __float2half_ru(fminf(fmaxf((high - least) / 15.0f, 0.0f), kHalfMax));
  const float step = __half2float(scale);
  const float inverse = step > 0.0f ? 1.0f / step : 0.0f;
  uint32_t nibbles[2];
  SPILLWAY_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float steps = fminf(fmaxf((x[i] - least) * inverse, 0.0f), 15.0f);
    nibbles[i] = has[i] && !damaged ? static_cast<uint32_t>(steps + 0.5f) : 0;
  }
  // Word w has the numbers w, words + w, 2 * words + w, ...
  uint32_t packed = 0;
  SPILLWAY_UNROLL
  for (int i = 0; i < kQ4NibblesPerWord; ++i) {
    const int at = i * words + lane;
    const uint32_t one = __shfl_sync(0xffffffffu, nibbles[0], at % kWarp);
    const uint32_t other = __shfl_sync(0xffffffffu, nibbles[1], at % kWarp);
    packed |= (at < kWarp ? one : other) << (4 * i);
  }
  if (lane < words) reinterpret_cast<uint32_t*>(to + 4)[lane] = packed;
  if (lane > 0) return;
  auto* shared = reinterpret_cast<__half*>(to);
  shared[0] = damaged ? __float2half_rn(0.0f) : scale;
  shared[1] = damaged ? __float2half_rn(NAN) : minimum;
}

// Quantises a row of `count` numbers. Called by all lanes of a warp.
__device__ inline void store_q4_row(const float* from, int64_t count, std::byte* row) {
  for (int64_t first = 0; first < count; first += kQ4Group) {
    pack_q4_group(from + first, count - first, row + first / kQ4Group * (4 + kQ4Group / 2));
  }
}

}  // namespace spillway::cuda
