// Quantised numbers on the device; the formats are those of base/quantized.h and
// base/quantized_rows.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/base/quantized.h"
#include "kernels/base/quantized_rows.h"
#include "kernels/cuda/kernel.h"

namespace spillway::cuda {

// A quantised format's groups. Kernels are templates of bits and group.
template <int kBits, int kGroup>
struct Groups {
  static constexpr int kFields = 32 / kBits;       // Numbers in a word
  static constexpr int kWords = kGroup / kFields;  // Words of a whole group
  static constexpr uint32_t kMask = (1u << kBits) - 1;
  static constexpr int kBytes = 4 + 4 * kWords;
};

// Calls body(bits, group), integral constants. REQUIRES: is_grouped(format).
template <class Body>
void with_groups(Format format, Body&& body) {
  with_quant_traits(format, [&](auto traits) {
    using Traits = decltype(traits);
    body(std::integral_constant<int, Traits::kBits>{},
         std::integral_constant<int, static_cast<int>(Traits::kGroup)>{});
  });
}

// Number `i` of a row of `count`.
template <int kBits, int kGroup>
__device__ inline float quantized_row_value(const std::byte* row, int64_t i, int64_t count) {
  using G = Groups<kBits, kGroup>;
  const int64_t group = i / kGroup, at = i % kGroup;
  const int64_t rest = count - group * kGroup;
  const int64_t size = rest < kGroup ? rest : kGroup;
  const int64_t words = (size + G::kFields - 1) / G::kFields;
  const std::byte* from = row + group * G::kBytes;
  const auto* shared = reinterpret_cast<const __half*>(from);
  const uint32_t word = reinterpret_cast<const uint32_t*>(from + 4)[at % words];
  const uint32_t code = word >> (kBits * (at / words)) & G::kMask;
  return fmaf(static_cast<float>(code), __half2float(shared[0]), __half2float(shared[1]));
}
// Number `i` of a row with one scale (kQ8).
__device__ inline float q8_row_value(const std::byte* row, int64_t i) {
  const auto* codes = reinterpret_cast<const int8_t*>(row + sizeof(float));
  return static_cast<float>(codes[i]) * *reinterpret_cast<const float*>(row);
}
__device__ inline float q4_row_value(const std::byte* row, int64_t i, int64_t count) {
  return quantized_row_value<4, 64>(row, i, count);
}

// Eight neighbouring numbers of a whole group, to each of the kGroup / 8 neighbouring lanes that
// hold its words, lane l those from l on that are as many apart. Same bits as
// quantized_row_value(). Called by all lanes of a warp.
template <int kBits, int kGroup>
struct GroupLanes {
  using G = Groups<kBits, kGroup>;
  static constexpr int kLanes = kGroup / 8;
  static constexpr int kHeld = G::kWords / kLanes;  // Words a lane holds

  __device__ static void expand(const uint32_t (&words)[kHeld], float scale, float minimum,
                                float (&to)[8]) {
    constexpr uint32_t kTwoTo23 = 0x4b000000u;  // A float whose last bit is worth 1
    const int lane = threadIdx.x % kLanes, first = threadIdx.x % kWarp / kLanes * kLanes;
    SPILLWAY_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int word = i % G::kWords;
      const int shift = kBits * ((8 / G::kWords) * lane + i / G::kWords);
      const uint32_t held = __shfl_sync(0xffffffffu, words[word / kLanes], first + word % kLanes);
      const uint32_t code = held >> shift & G::kMask;
      to[i] = fmaf(__uint_as_float(code | kTwoTo23) - 8388608.0f, scale, minimum);
    }
  }
};

constexpr int64_t kQ4Group = QuantTraits<Format::kQ4>::kGroup;
constexpr int64_t kQ4NibblesPerWord = QuantTraits<Format::kQ4>::kFields;

// Quantises the next 4-bit group of a row of which `rest` numbers are left, as quantize_group()
// does, bit for bit. Called by all lanes of a warp, two numbers each.
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

// Quantises a row of `count` numbers to 4 bits. Called by all lanes of a warp.
__device__ inline void store_q4_row(const float* from, int64_t count, std::byte* row) {
  for (int64_t first = 0; first < count; first += kQ4Group) {
    pack_q4_group(from + first, count - first, row + first / kQ4Group * (4 + kQ4Group / 2));
  }
}

// Quantises a row of `count` numbers to 8 bits as quantize_q8_row() does. Called by all lanes of a
// warp.
__device__ inline void store_q8_row(const float* from, int64_t count, std::byte* row) {
  const int lane = threadIdx.x % kWarp;
  float most = 0;
  bool damaged = false;  // NaN or infinite
  for (int64_t i = lane; i < count; i += kWarp) {
    most = fmaxf(most, fabsf(from[i]));
    damaged = damaged || from[i] * 0.0f != 0.0f;
  }
  damaged = __any_sync(0xffffffffu, damaged);
  const float scale = damaged ? NAN : fminf(warp_max(most) / kQ8CodeMax, kQ8ScaleMax);
  auto* codes = reinterpret_cast<int8_t*>(row + sizeof(float));
  const auto padded = (count + 3) / 4 * 4;
  for (int64_t i = lane; i < padded; i += kWarp) {
    const bool some = i < count && scale > 0.0f;
    const float steps = some ? fminf(fmaxf(from[i] / scale, -kQ8CodeMax), kQ8CodeMax) : 0.0f;
    codes[i] = static_cast<int8_t>(rintf(steps));
  }
  if (lane == 0) *reinterpret_cast<float*>(row) = scale;
}

}  // namespace spillway::cuda
