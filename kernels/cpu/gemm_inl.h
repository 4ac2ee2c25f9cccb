// The micro-kernel of the matrix products (gemm_f32.cc, gemm_quant.cc); included once per
// instruction set.
#if defined(SPILLWAY_CPU_GEMM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_GEMM_INL_H
#undef SPILLWAY_CPU_GEMM_INL_H
#else
#define SPILLWAY_CPU_GEMM_INL_H
#endif

#include <hwy/highway.h>

#include "kernels/cpu/gemm_f32.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr size_t kLanes = hn::MaxLanes(D());

constexpr int64_t kPanel = 16;  // Outputs side by side in the layout.
constexpr int kPanelVectors = static_cast<int>(kPanel / static_cast<int64_t>(kLanes));

// Rows of a strip, and registers for sums: 24 of 32, else 12 of 16.
#if HWY_TARGET <= HWY_AVX3
constexpr int kStripRows = 12;
constexpr int kSumVectors = 24;
#elif HWY_TARGET == HWY_AVX2
constexpr int kStripRows = 6;
constexpr int kSumVectors = 12;
#else
constexpr int kStripRows = 3;
constexpr int kSumVectors = 12;
#endif

// Panels per micro-kernel: few rows take more, so that enough independent chains hide the latency
// of the multiply-add.
constexpr int panels_for(int rows) {
  const int most = kSumVectors / (rows * kPanelVectors);
  return most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

// Weights are read once, from memory. The hardware's prefetcher starts anew in every 4 KiB page;
// asking a page ahead, into the L2 cache, hides that. From there half a page ahead they go to the
// L1 cache: memory gives most while as many lines are on their way as a core can wait for, and it
// asks for no more of them while it waits for the L2 cache itself.
constexpr size_t kMemoryAhead = 4096, kPrefetchBytes = 2048;
template <class T>
HWY_INLINE void prefetch(const T* weights) {
  const auto* at = reinterpret_cast<const char*>(weights);
  __builtin_prefetch(at + kMemoryAhead, 0, 2);
  __builtin_prefetch(at + kPrefetchBytes);
}

// Loads one k of one panel, widened to float32.
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

// Block of c that a micro-kernel keeps in registers.
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
  // Adds the outer product of one k: kRows activations, and the weights of kMany panels from
  // `panel` on.
  template <int kMany = 1>
  HWY_INLINE void add(const float* HWY_RESTRICT a, int panel, const V* HWY_RESTRICT b) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const V x = hn::Set(D(), a[i]);
#pragma GCC unroll 16
      for (int j = 0; j < kMany * kPanelVectors; ++j) {
        V& sum = v[i][panel * kPanelVectors + j];
        sum = hn::MulAdd(x, b[j], sum);
      }
    }
  }
};

// Adds one k of all panels; load(panel, b) gives a panel's weights. With enough registers, all
// panels' weights are loaded first and each activation is broadcast once. Otherwise panels take
// turns: an activation kept for the next one would push a sum out of its register.
template <int kRows, int kPanels, class Load>
HWY_INLINE void add_panels(const float* HWY_RESTRICT a, const Load& load,
                           Sums<kRows, kPanels>& sums) {
  constexpr int kMany = kSumVectors > 12 ? kPanels : 1;
#pragma GCC unroll 4
  for (int first = 0; first < kPanels; first += kMany) {
    V b[kMany * kPanelVectors];
#pragma GCC unroll 4
    for (int p = 0; p < kMany; ++p) load(first + p, b + p * kPanelVectors);
    sums.template add<kMany>(a, first, b);
  }
}

// c += a . w over `depth` positions; a is [k][kRows], w is [k][16] in each of kPanels panels that
// are `panel_stride` elements apart.
template <int kRows, int kPanels, class T>
HWY_INLINE void micro_kernel(const float* HWY_RESTRICT a, const T* HWY_RESTRICT w,
                             int64_t panel_stride, int64_t depth, float* HWY_RESTRICT c) {
  Sums<kRows, kPanels> sums;
  sums.load(c);
  for (int64_t k = 0; k < depth; ++k) {
    const auto load = [&](int p, V* HWY_RESTRICT b) {
      prefetch(w + p * panel_stride + k * kPanel);
      load_weights(w + p * panel_stride + k * kPanel, b);
    };
    add_panels(a + k * kRows, load, sums);
  }
  sums.store(c);
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#endif
