#include "kernels/cpu/gemm_f32.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>

#include "kernels/cpu/gemm_quant.h"
#include "kernels/cpu/strips.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_f32.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/gemm_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// k positions of one panel (2 bytes: 16 KiB) that stay in the L1 cache while every strip passes.
constexpr int64_t kDepth = 512;

// bfloat16: a 32-bit lane holds two k of one output; a shift and a mask widen them.
template <int kRows, int kPanels>
HWY_INLINE void micro_kernel(const float* HWY_RESTRICT a, const uint32_t* HWY_RESTRICT w,
                             int64_t panel_stride, int64_t depth, float* HWY_RESTRICT c) {
  const hn::RebindToUnsigned<D> du;
  const auto high = hn::Set(du, 0xffff0000u);
  Sums<kRows, kPanels> sums;
  sums.load(c);
  for (int64_t k = 0; k < depth; k += 2) {
    const auto bf16_pairs = [&](int p, int j) {
      return hn::LoadU(du, w + p * panel_stride + k / 2 * kPanel + j * static_cast<int>(kLanes));
    };
    const auto even = [&](int p, V* HWY_RESTRICT b) {
#pragma GCC unroll 16
      for (int j = 0; j < kPanelVectors; ++j) {
        b[j] = hn::BitCast(D(), hn::ShiftLeft<16>(bf16_pairs(p, j)));
      }
    };
    const auto odd = [&](int p, V* HWY_RESTRICT b) {
#pragma GCC unroll 16
      for (int j = 0; j < kPanelVectors; ++j) {
        b[j] = hn::BitCast(D(), hn::And(bf16_pairs(p, j), high));
      }
    };
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      prefetch(w + p * panel_stride + k / 2 * kPanel);
    }
    add_panels(a + k * kRows, even, sums);
    if (k + 1 == depth) break;  // An odd number of inputs: the packed strip ends here.
    add_panels(a + (k + 1) * kRows, odd, sums);
  }
  sums.store(c);
}

// Weights that a strip is multiplied by: kGemmColumns / kPanel panels from position k on.
struct TileWeights {
  const std::byte* panels;
  Format format;
  int64_t columns_padded;  // Elements of a panel: 16 times this.
};

template <int kRows>
void strip_kernel(const float* a, const TileWeights& weights, int64_t k, int64_t depth, int panel,
                  float* c) {
  constexpr int kPanels = panels_for(kRows);
  const int64_t panel_elements = weights.columns_padded * kPanel;
  const int64_t start = panel * panel_elements + k * kPanel;
  float* target = c + panel * kPanel;
  if (weights.format == Format::kF32) {
    const auto* w = reinterpret_cast<const float*>(weights.panels) + start;
    micro_kernel<kRows, kPanels>(a, w, panel_elements, depth, target);
  } else if (weights.format == Format::kF16) {
    const auto* w = reinterpret_cast<const hwy::float16_t*>(weights.panels) + start;
    micro_kernel<kRows, kPanels>(a, w, panel_elements, depth, target);
  } else {
    const auto* w = reinterpret_cast<const uint32_t*>(weights.panels) + start / 2;
    micro_kernel<kRows, kPanels>(a, w, panel_elements / 2, depth, target);
  }
}

using StripKernel = void (*)(const float*, const TileWeights&, int64_t, int64_t, int, float*);

struct SizedKernel {
  StripKernel run;
  int panels;  // Panels per call
};
constexpr auto kStripKernels = kernels_by_rows<kStripRows>([](auto rows) {
  return SizedKernel{&strip_kernel<decltype(rows)::value>, panels_for(decltype(rows)::value)};
});

// Multiplies all strips by four panels over one range of k.
void run_strips(const float* packed_a, const Strips& strips, int64_t columns,
                const TileWeights& weights, int64_t k, int64_t depth, float* c) {
  // Strips of one height at a time: the number of panels per kernel depends on it.
  for (int64_t first = 0, end = 0; first < strips.count(); first = end) {
    const int64_t height = strips.height(first);
    while (end < strips.count() && strips.height(end) == height) ++end;
    const SizedKernel& kernel = kStripKernels.of[height - 1];
    for (int panel = 0; panel < kGemmColumns / kPanel; panel += kernel.panels) {
      for (int64_t s = first; s < end; ++s) {
        const int64_t row = strips.first(s);
        kernel.run(packed_a + row * columns + k * height, weights, k, depth, panel,
                   c + row * kGemmColumns);
      }
    }
  }
}

// With 512-bit vectors, widening competes with the multiply-adds for the same two ports: one
// instruction to kStripRows of them. Tall tiles widen a range of k of two panels once, for all
// strips.
#if HWY_TARGET <= HWY_AVX3
constexpr int64_t kWidenStrips = 4;  // From this many strips on
#else
constexpr int64_t kWidenStrips = kGemmRowsMax;  // Never
#endif
constexpr int64_t kWidenDepth = 192;  // 24 KiB for two panels: stays in the L1 cache
constexpr int kWidenPanels = 2;
// Strips of tiles with this many strips are so tall that a kernel takes no more panels.
static_assert(HWY_TARGET > HWY_AVX3 ||
              panels_for(kStripRows - kStripRows / kWidenStrips) <= kWidenPanels);

// Widens one panel to float32, [k][16].
void widen(const TileWeights& weights, int panel, int64_t k, int64_t depth,
           float* HWY_RESTRICT to) {
  const int64_t start = (panel * weights.columns_padded + k) * kPanel;
  if (weights.format == Format::kF16) {
    const auto* w = reinterpret_cast<const hwy::float16_t*>(weights.panels) + start;
    for (int64_t i = 0; i < depth; ++i) {
      V b[kPanelVectors];
      load_weights(w + i * kPanel, b);
      for (int j = 0; j < kPanelVectors; ++j) {
        hn::StoreU(b[j], D(), to + i * kPanel + j * static_cast<int>(kLanes));
      }
    }
    return;
  }
  const hn::RebindToUnsigned<D> du;
  const auto high = hn::Set(du, 0xffff0000u);
  const auto* w = reinterpret_cast<const uint32_t*>(weights.panels) + start / 2;
  for (int64_t i = 0; i < depth; i += 2) {
    for (int j = 0; j < kPanelVectors; ++j) {
      const auto both = hn::LoadU(du, w + i / 2 * kPanel + j * static_cast<int>(kLanes));
      float* HWY_RESTRICT target = to + i * kPanel + j * static_cast<int>(kLanes);
      hn::StoreU(hn::BitCast(D(), hn::ShiftLeft<16>(both)), D(), target);
      // After an odd number of inputs the packed pair ends in a zero.
      hn::StoreU(hn::BitCast(D(), hn::And(both, high)), D(), target + kPanel);
    }
  }
}

// Multiplies all strips by ranges of two panels that are widened once.
void run_strips_widened(const float* packed_a, const Strips& strips, int64_t columns,
                        const TileWeights& weights, float* c) {
  alignas(64) float wide[kWidenPanels * (kWidenDepth + 1) * kPanel];
  const TileWeights stretch{reinterpret_cast<const std::byte*>(wide), Format::kF32,
                            kWidenDepth + 1};
  for (int64_t k = 0; k < columns; k += kWidenDepth) {
    const int64_t depth = std::min(kWidenDepth, columns - k);
    for (int panel = 0; panel < kGemmColumns / kPanel; panel += kWidenPanels) {
      for (int p = 0; p < kWidenPanels; ++p) {
        widen(weights, panel + p, k, depth, wide + p * stretch.columns_padded * kPanel);
      }
      for (int64_t s = 0; s < strips.count(); ++s) {
        const int64_t row = strips.first(s), height = strips.height(s);
        const SizedKernel& kernel = kStripKernels.of[height - 1];
        for (int p = 0; p < kWidenPanels; p += kernel.panels) {
          kernel.run(packed_a + row * columns + k * height, stretch, 0, depth, p,
                     c + row * kGemmColumns + panel * kPanel);
        }
      }
    }
  }
}

void MultiplyTile(const float* packed_a, int64_t rows, int64_t columns, Format format,
                  const std::byte* panels, bool accumulate, float* c) {
  if (!accumulate) std::fill(c, c + rows * kGemmColumns, 0.0f);
  const int64_t padded = padded_columns(MatrixLayout::kPanels16, format, columns);
  const TileWeights weights{panels, format, padded};
  const Strips strips(rows, kStripRows);
  if (strips.count() >= kWidenStrips && format != Format::kF32) {
    return run_strips_widened(packed_a, strips, columns, weights, c);
  }
  for (int64_t k = 0; k < columns; k += kDepth) {
    run_strips(packed_a, strips, columns, weights, k, std::min(kDepth, columns - k), c);
  }
}

#if HWY_TARGET <= HWY_AVX3
#define SPILLWAY_TRANSPOSE_BODIES
#include "kernels/cpu/transpose_inl.h"
#undef SPILLWAY_TRANSPOSE_BODIES

void PackStrip(const float* a, int64_t stride, int64_t height, int64_t columns, float* packed) {
  const auto load = [&](int64_t row, int64_t column) {
    const int64_t left = std::min<int64_t>(16, columns - column);
    const auto there = static_cast<__mmask16>((1u << left) - 1);
    return _mm512_maskz_loadu_epi32(there, a + row * stride + column);
  };
  store_columns(height, columns, load, packed);
}
#else
void PackStrip(const float* a, int64_t stride, int64_t height, int64_t columns, float* packed) {
  for (int64_t k = 0; k < columns; ++k) {
    for (int64_t i = 0; i < height; ++i) packed[k * height + i] = a[i * stride + k];
  }
}
#endif

int64_t StripRows() {
  return kStripRows;
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {

HWY_EXPORT(MultiplyTile);
HWY_EXPORT(PackStrip);
HWY_EXPORT(StripRows);

int64_t gemm_strip_rows() {
  return HWY_DYNAMIC_DISPATCH(StripRows)();
}

void pack_strip(const float* a, int64_t stride, int64_t height, int64_t columns, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackStrip)(a, stride, height, columns, packed);
}

void pack_strips(const float* a, int64_t stride, int64_t rows, int64_t columns, float* packed) {
  const Strips strips(rows, gemm_strip_rows());
  for (int64_t s = 0; s < strips.count(); ++s) {
    const int64_t row = strips.first(s);
    pack_strip(a + row * stride, stride, strips.height(s), columns, packed + row * columns);
  }
}

void multiply_tile(const float* packed_a, int64_t rows, int64_t columns, Format format,
                   const std::byte* panels, bool accumulate, float* c) {
  if (is_quantized(format)) {
    SPILLWAY_CHECK(!accumulate);
    return multiply_quantized_tile(packed_a, rows, columns, format, panels, c);
  }
  HWY_DYNAMIC_DISPATCH(MultiplyTile)(packed_a, rows, columns, format, panels, accumulate, c);
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
