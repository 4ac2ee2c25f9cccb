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

}  // namespace spillway::cuda
