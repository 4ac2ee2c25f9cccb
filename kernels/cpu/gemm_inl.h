// The micro-kernel of the matrix products (gemm.cc, gemm_q4.cc); included once per instruction set.
#if defined(SPILLWAY_CPU_GEMM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_GEMM_INL_H
#undef SPILLWAY_CPU_GEMM_INL_H
#else
#define SPILLWAY_CPU_GEMM_INL_H
#endif

#include <hwy/highway.h>

#include "kernels/cpu/gemm.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr size_t kLanes = hn::MaxLanes(D());

constexpr int64_t kPanel = 16;  // Outputs side by side in the layout.
constexpr int kPanelVectors = static_cast<int>(kPanel / static_cast<int64_t>(kLanes));

// Rows of a strip: with one panel's vectors, 12 of 16 registers are accumulators.
#if HWY_TARGET <= HWY_AVX3
constexpr int kStripRows = 12;
#elif HWY_TARGET == HWY_AVX2
constexpr int kStripRows = 6;
#else
constexpr int kStripRows = 3;
#endif

// Panels that one micro-kernel takes: few rows take more, so that enough independent chains hide
// the latency of the multiply-add.
constexpr int panels_for(int rows) {
  const int most = 12 / (rows * kPanelVectors);
  return most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

// One k of one panel, widened to float32.
HWY_INLINE void load_weights(const float* HWY_RESTRICT w, V* HWY_RESTRICT b) {
#pragma GCC unroll 16
  for (int j = 0; j < kPanelVectors; ++j) {
    b[j] = hn::LoadU(D(), w + static_cast<size_t>(j) * kLanes);
  }
}
HWY_INLINE void load_weights(const hwy::float16_t* HWY_RESTRICT w, V* HWY_RESTRICT b) {
  const hn::Rebind<hwy::float16_t, D> d16;
#pragma GCC unroll 16
  for (int j = 0; j < kPanelVectors; ++j) {
    b[j] = hn::PromoteTo(D(), hn::LoadU(d16, w + static_cast<size_t>(j) * kLanes));
  }
}

// The block of c that a micro-kernel keeps in registers.
template <int kRows, int kPanels>
struct Sums {
  static constexpr int kVectors = kPanels * kPanelVectors;
  V v[kRows][kVectors];

  HWY_INLINE void load(const float* HWY_RESTRICT c) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        v[i][j] = hn::LoadU(D(), c + i * kGemmColumns + j * static_cast<int>(kLanes));
      }
    }
  }
  HWY_INLINE void store(float* HWY_RESTRICT c) const {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        hn::StoreU(v[i][j], D(), c + i * kGemmColumns + j * static_cast<int>(kLanes));
      }
    }
  }
  // Adds the outer product of one k: kRows activations, one panel's weights.
  HWY_INLINE void add(const float* HWY_RESTRICT a, int panel, const V* HWY_RESTRICT b) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const V x = hn::Set(D(), a[i]);
#pragma GCC unroll 16
      for (int j = 0; j < kPanelVectors; ++j) {
        V& sum = v[i][panel * kPanelVectors + j];
        sum = hn::MulAdd(x, b[j], sum);
      }
    }
  }
};

// c += a . w over `depth` positions; a is [k][kRows], w is [k][16] in each of kPanels panels that
// are `panel_stride` elements apart.
template <int kRows, int kPanels, class T>
HWY_INLINE void micro_kernel(const float* HWY_RESTRICT a, const T* HWY_RESTRICT w,
                             int64_t panel_stride, int64_t depth, float* HWY_RESTRICT c) {
  Sums<kRows, kPanels> sums;
  sums.load(c);
  for (int64_t k = 0; k < depth; ++k) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      V b[kPanelVectors];
      load_weights(w + p * panel_stride + k * kPanel, b);
      sums.add(a + k * kRows, p, b);
    }
  }
  sums.store(c);
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#endif
