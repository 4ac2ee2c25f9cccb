// Helpers of the kernels of gemm_bf16.h. Included once by each of their files, between
// SPILLWAY_BF16_DOT_BEGIN and SPILLWAY_BF16_DOT_END, which set the instructions that these may use:
// Highway 1.0 has no name for them.
#pragma once

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/strips.h"

#define SPILLWAY_BF16_DOT_BEGIN \
  HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16")
#define SPILLWAY_BF16_DOT_END HWY_POP_ATTRIBUTES

SPILLWAY_BF16_DOT_BEGIN

namespace spillway::cpu::bf16_dot {

constexpr int64_t kPanel = 16;  // Outputs side by side in the layout: a vector's lanes
constexpr int64_t kTilePanels = kGemmColumns / kPanel;

// Panels per kernel call when the rows fill no strip: about a dozen chains hide the latency and
// leave registers for as many sums.
constexpr int panels_for(int rows) {
  return rows <= 3 ? 4 : rows <= 6 ? 2 : 1;
}
constexpr int kTallPanels = 2;  // For a whole strip beside others: 24 sums in 32 registers

inline __m512 dot(__m512 sum, uint32_t a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)b);
}

// Weights are read once, from memory: into the L1 cache so many bytes ahead (gemm_inl.h). What asks
// for them earlier, into the L2 cache, is the product's own (gemm_bf16.cc: Ahead).
constexpr size_t kPrefetchBytes = 2048;
inline void prefetch(const void* weights) {
  __builtin_prefetch(static_cast<const char*>(weights) + kPrefetchBytes);
}

template <int kRows, int kPanels>
inline void clear(__m512 (&sums)[kRows][kPanels]) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) sums[i][p] = _mm512_setzero_ps();
  }
}

}  // namespace spillway::cpu::bf16_dot

SPILLWAY_BF16_DOT_END
