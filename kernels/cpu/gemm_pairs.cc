// Packing activations, and the product with bf16 weights, whose panels are pairs as they lie.
#include "kernels/cpu/gemm_pairs.h"

#include <cstring>

#include "kernels/base/check.h"
#include "kernels/weight_layout.h"

namespace spillway::cpu {

int64_t pair_groups(int64_t columns) {
  return (columns + kQ4Group - 1) / kQ4Group;
}
int64_t pair_columns(int64_t columns) {
  return pair_groups(columns) * kQ4Group / 2;
}

}  // namespace spillway::cpu

#if defined(__x86_64__)

#include "kernels/cpu/gemm_pairs_inl.h"

SPILLWAY_PAIRS_BEGIN

namespace spillway::cpu {

namespace {

using namespace pairs;

constexpr int64_t kDepth = 128;  // Pairs of two panels, 16 KiB, that stay in the L1 cache

// Of a whole group's bf16, always in the same order.
float sum_of(const uint16_t* group) {
  const __m512i ones = _mm512_set1_epi16(0x3f80);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < kQ4Group; i += 32) {
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(group + i), (__m512bh)ones);
  }
  return _mm512_reduce_add_ps(sum);
}

// One group of one row of a strip of `height` rows.
void pack_group(const uint16_t* from, int64_t height, uint32_t* pairs, float* sum) {
  for (int64_t k = 0; k < kGroupPairs; ++k) {
    std::memcpy(pairs + k * height, from + 2 * k, sizeof(uint32_t));
  }
  *sum = sum_of(from);
}

// c (+)= a strip times kPanels panels that are `panel_pairs` pairs apart, over `depth` pairs.
template <int kRows, int kPanels>
void kernel(const uint32_t* a, const uint32_t* w, int64_t panel_pairs, int64_t depth,
            bool accumulate, float* c) {
  __m512 sums[kRows][kPanels];
  if (accumulate) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        sums[i][p] = _mm512_load_ps(c + i * kGemmColumns + p * kPanel);
      }
    }
  } else {
    clear(sums);
  }
  for (int64_t k = 0; k < depth; ++k, a += kRows) {
    __m512i b[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const uint32_t* from = w + (p * panel_pairs + k) * kPanel;
      prefetch(from);
      b[p] = _mm512_loadu_si512(from);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) sums[i][p] = dot(sums[i][p], a[i], b[p]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      _mm512_store_ps(c + i * kGemmColumns + p * kPanel, sums[i][p]);
    }
  }
}

using Kernel = void (*)(const uint32_t*, const uint32_t*, int64_t, int64_t, bool, float*);

// For a tile of one strip, and for a strip beside others.
template <int kRows>
Kernel kernel_for(int64_t rows, bool tall, int* panels) {
  if (rows == kRows) {
    constexpr int kFew = panels_for(kRows);
    *panels = tall ? kTallPanels : kFew;
    return tall ? &kernel<kRows, kTallPanels> : &kernel<kRows, kFew>;
  }
  if constexpr (kRows > 1) return kernel_for<kRows - 1>(rows, tall, panels);
  return nullptr;
}

void multiply_bf16_tile(const PairStrips& a, int64_t rows, int64_t columns, const uint32_t* w,
                        float* c) {
  const int64_t all = padded_columns(MatrixLayout::kPanels16, DType::kBF16, columns) / 2;
  const bool tall = rows > kPairStripRows;
  const int64_t stretch = tall ? kDepth : all;
  for (int64_t k = 0; k < all; k += stretch) {
    const int64_t depth = std::min(stretch, all - k);
    int panels = 0;
    for (int64_t panel = 0; panel < kTilePanels; panel += panels) {
      for (int64_t row = 0; row < rows; row += kPairStripRows) {
        const int64_t height = std::min(kPairStripRows, rows - row);
        const Kernel run = kernel_for<kPairStripRows>(height, tall, &panels);
        run(a.pairs + row * pair_columns(columns) + k * height, w + (panel * all + k) * kPanel, all,
            depth, k > 0, c + row * kGemmColumns + panel * kPanel);
      }
    }
  }
}

}  // namespace

void pack_pair_strips(const uint16_t* a, int64_t stride, int64_t rows, int64_t columns,
                      const PairStrips& strips) {
  const int64_t groups = pair_groups(columns);
  for (int64_t first = 0; first < rows; first += kPairStripRows) {
    const int64_t height = std::min(kPairStripRows, rows - first);
    uint32_t* const pairs = strips.pairs + first * groups * kGroupPairs;
    float* const sums = strips.sums + first * groups;
    for (int64_t i = 0; i < height; ++i) {
      const uint16_t* row = a + (first + i) * stride;
      for (int64_t g = 0; g < groups; ++g, row += kQ4Group) {
        uint16_t padded[kQ4Group] = {};
        const int64_t left = columns - g * kQ4Group;
        if (left < kQ4Group) {
          std::memcpy(padded, row, static_cast<size_t>(left) * sizeof(uint16_t));
        }
        pack_group(left < kQ4Group ? padded : row, height, pairs + g * kGroupPairs * height + i,
                   sums + g * height + i);
      }
    }
  }
}

void multiply_pairs_tile(const PairStrips& a, int64_t rows, int64_t columns, DType format,
                         const std::byte* panels, float* c) {
  if (format == DType::kQ4) return multiply_pairs_q4_tile(a, rows, columns, panels, c);
  SPILLWAY_CHECK(format == DType::kBF16);
  multiply_bf16_tile(a, rows, columns, reinterpret_cast<const uint32_t*>(panels), c);
}

}  // namespace spillway::cpu

SPILLWAY_PAIRS_END

namespace spillway::cpu {

bool has_pairs() {
  static const bool has =
      __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0;
  return has;
}

bool pairs_are_fastest() {
  return has_pairs() && __builtin_cpu_is("amd") != 0;
}

}  // namespace spillway::cpu

#else

namespace spillway::cpu {

bool has_pairs() {
  return false;
}
bool pairs_are_fastest() {
  return false;
}
void pack_pair_strips(const uint16_t*, int64_t, int64_t, int64_t, const PairStrips&) {
  SPILLWAY_CHECK(false);
}
void multiply_pairs_tile(const PairStrips&, int64_t, int64_t, DType, const std::byte*, float*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
