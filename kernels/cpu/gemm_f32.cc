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
    end = strips.end_of_height(first);
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

// Widening competes with the multiply-adds for their ports: an instruction to kStripRows of them.
// Tiles of several strips widen a stretch, a range of k of a kernel's panels, once: the first
// strip's kernel leaves it in the L1 cache for the others.
#if HWY_TARGET <= HWY_AVX2
constexpr int64_t kWidenDepth = 192;  // 12 KiB a panel: two stay in the L1 cache of 32
constexpr int kWidenPanels = panels_for(kStripRows);
// Rows of the lowest strip: kernels for fewer take more panels.
constexpr int kWidenRowsMin = kStripRows / 2 + 1;
static_assert(panels_for(kWidenRowsMin) == kWidenPanels && panels_for(kStripRows) == kWidenPanels);

// Where a kernel asks for what a later one needs, into the L2 cache: the hardware's prefetcher
// starts anew in every page, and a strip's part of a stretch is a few pages at most.
struct Ahead {
  const std::byte* at;
  int64_t step;  // Bytes a k

  HWY_INLINE void ask() {
    __builtin_prefetch(at, 0, 2);
    at += step;
  }
};

// A stretch, as all strips are multiplied by it.
struct Stretch {
  const std::byte* w;   // The first panel's k of this stretch, in 2 bytes a number
  int64_t panel_bytes;  // From a panel to the next
  int64_t depth;
  float* wide;                      // [kWidenPanels][kWidenDepth][16]: the stretch in float32
  int64_t weights_step, rows_step;  // Bytes a k of what is asked for
};

constexpr int64_t kWidePanel = kWidenDepth * kPanel;  // Numbers
constexpr int64_t kRowsAhead = 16;                    // k of its own strip that a kernel asks for
// Outputs of the strips behind it that a kernel asks for with each k: those of the next strip by
// the end, which weights and rows have pushed out of the L1 cache since its last stretch.
constexpr int64_t kOutputsAhead = 4;
static_assert(kWidenDepth * kOutputsAhead >= kStripRows * kGemmColumns);

HWY_INLINE void ask_ahead(const float* a, int64_t height, Ahead& weights, Ahead& rows) {
  weights.ask();
  rows.ask();
  __builtin_prefetch(a + kRowsAhead * height);
}

HWY_INLINE void store_panel(const V* HWY_RESTRICT b, float* HWY_RESTRICT to) {
#pragma GCC unroll 16
  for (int j = 0; j < kPanelVectors; ++j) {
    hn::StoreU(b[j], D(), to + j * static_cast<int>(kLanes));
  }
}

// One k after the other: load(p, k, b) gives the weights of panel p.
template <int kRows, class Load>
HWY_INLINE void by_each_k(const Stretch& in, const float* a, float* c, const std::byte* weights_at,
                          const std::byte* rows_at, const Load& load) {
  Ahead weights{weights_at, in.weights_step}, rows{rows_at, in.rows_step};
  const int64_t depth = in.depth;
  Sums<kRows, kWidenPanels> sums;
  sums.load(c);
  for (int64_t k = 0; k < depth; ++k) {
    ask_ahead(a + k * kRows, kRows, weights, rows);
    __builtin_prefetch(c + kRows * kGemmColumns + k * kOutputsAhead);
    add_panels(
        a + k * kRows, [&](int p, V* HWY_RESTRICT b) { load(p, k, b); }, sums);
  }
  sums.store(c);
}

template <int kRows>
void multiply_strip(const Stretch& in, const float* a, float* c, const std::byte* weights,
                    const std::byte* rows) {
  const float* const wide = in.wide;
  by_each_k<kRows>(in, a, c, weights, rows, [&](int p, int64_t k, V* HWY_RESTRICT b) {
    load_weights(wide + p * kWidePanel + k * kPanel, b);
  });
}

template <int kRows>
void widen_strip_f16(const Stretch& in, const float* a, float* c, const std::byte* weights,
                     const std::byte* rows) {
  by_each_k<kRows>(in, a, c, weights, rows, [&](int p, int64_t k, V* HWY_RESTRICT b) {
    const auto* w = reinterpret_cast<const hwy::float16_t*>(in.w + p * in.panel_bytes);
    load_weights(w + k * kPanel, b);
    store_panel(b, in.wide + p * kWidePanel + k * kPanel);
  });
}

// bfloat16: as in micro_kernel().
template <int kRows>
void widen_strip_bf16(const Stretch& in, const float* a, float* c, const std::byte* weights_at,
                      const std::byte* rows_at) {
  const hn::RebindToUnsigned<D> du;
  const auto high = hn::Set(du, 0xffff0000u);
  Ahead weights{weights_at, in.weights_step}, rows{rows_at, in.rows_step};
  Sums<kRows, kWidenPanels> sums;
  sums.load(c);
  for (int64_t k = 0; k < in.depth; k += 2) {
    ask_ahead(a + k * kRows, kRows, weights, rows);
    const auto bf16_pairs = [&](int p, int j) {
      const auto* w = reinterpret_cast<const uint32_t*>(in.w + p * in.panel_bytes);
      return hn::LoadU(du, w + k / 2 * kPanel + j * static_cast<int>(kLanes));
    };
    float* HWY_RESTRICT const wide = in.wide + k * kPanel;
    const auto even = [&](int p, V* HWY_RESTRICT b) {
#pragma GCC unroll 16
      for (int j = 0; j < kPanelVectors; ++j) {
        b[j] = hn::BitCast(D(), hn::ShiftLeft<16>(bf16_pairs(p, j)));
      }
      store_panel(b, wide + p * kWidePanel);
    };
    const auto odd = [&](int p, V* HWY_RESTRICT b) {
#pragma GCC unroll 16
      for (int j = 0; j < kPanelVectors; ++j) {
        b[j] = hn::BitCast(D(), hn::And(bf16_pairs(p, j), high));
      }
      store_panel(b, wide + p * kWidePanel + kPanel);
    };
    add_panels(a + k * kRows, even, sums);
    if (k + 1 == in.depth) break;
    ask_ahead(a + (k + 1) * kRows, kRows, weights, rows);
    add_panels(a + (k + 1) * kRows, odd, sums);
  }
  sums.store(c);
}

using MultiplyStretch = void (*)(const Stretch&, const float* a, float* c,
                                 const std::byte* weights_ahead, const std::byte* rows_ahead);
struct StretchKernels {
  MultiplyStretch widen_f16, widen_bf16, multiply;
};
constexpr auto kStretchKernels = kernels_by_rows<kStripRows>([](auto rows) -> StretchKernels {
  constexpr int kRows = decltype(rows)::value;
  if constexpr (kRows < kWidenRowsMin)
    return {};
  else
    return {&widen_strip_f16<kRows>, &widen_strip_bf16<kRows>, &multiply_strip<kRows>};
});

// Multiplies all strips by stretches that are widened once.
void run_strips_widened(const float* packed_a, const Strips& strips, int64_t columns,
                        const TileWeights& weights, float* c, const TileTaker& taker) {
  alignas(64) float wide[kWidenPanels * kWidePanel];
  const int64_t panel_bytes = weights.columns_padded * kPanel * 2;
  const auto stretch = [&](int64_t k, int panel) {
    return weights.panels + panel * panel_bytes + k * kPanel * 2;
  };
  const int64_t stretches = (columns + kWidenDepth - 1) / kWidenDepth;
  const OutputsAhead outputs(taker.outputs, kStripRows, stretches);
  for (int64_t at = 0; at < stretches; ++at) {
    const int64_t k = at * kWidenDepth, depth = std::min(kWidenDepth, columns - k);
    for (int panel = 0; panel < kGemmColumns / kPanel; panel += kWidenPanels) {
      // The first strips ask for the next stretch, a panel each; with the last panels, all ask for
      // their part of the next k. Behind the last k lie the weights of the next outputs.
      const bool last = panel + kWidenPanels == kGemmColumns / kPanel;
      const std::byte* next = stretch(k, panel + kWidenPanels);
      if (last && at + 1 < stretches) next = stretch(k + depth, 0);
      const Stretch silent{.w = stretch(k, panel),
                           .panel_bytes = panel_bytes,
                           .depth = depth,
                           .wide = wide,
                           .weights_step = 0,
                           // (Of the highest strips: a line more than a lower one has)
                           .rows_step = last ? kStripRows * int64_t{sizeof(float)} : 0};
      Stretch asking = silent;
      asking.weights_step = kPanel * 2;
      for (int64_t s = 0; s < strips.count();) {
        const int64_t height = strips.height(s), end = strips.end_of_height(s);
        const StretchKernels& kernels = kStretchKernels.of[height - 1];
        int64_t row = strips.first(s);
        const float* a = packed_a + row * columns + k * height;
        float* target = c + row * kGemmColumns + panel * kPanel;
        for (; s < end; ++s) {
          outputs.ask(at, row, height, panel * kPanel, kWidenPanels * kPanel);
          const MultiplyStretch multiply = s > 0                             ? kernels.multiply
                                           : weights.format == Format::kBF16 ? kernels.widen_bf16
                                                                             : kernels.widen_f16;
          const auto* const used = reinterpret_cast<const std::byte*>(target);
          const auto* const rows = reinterpret_cast<const std::byte*>(a + depth * height);
          const bool asks = s < kWidenPanels;
          multiply(asks ? asking : silent, a, target, asks ? next : used, last ? rows : used);
          if (at + 1 == stretches) {
            taker.take(row, height, panel * kPanel, kWidenPanels * kPanel);
          }
          next += panel_bytes;
          row += height;
          a += height * columns;
          target += height * kGemmColumns;
        }
      }
    }
  }
}
#endif

void MultiplyTile(const float* packed_a, int64_t rows, int64_t columns, Format format,
                  const std::byte* panels, float* c, const TileTaker& taker) {
  std::fill(c, c + rows * kGemmColumns, 0.0f);
  const int64_t padded = padded_columns(MatrixLayout::kPanels16, format, columns);
  const TileWeights weights{panels, format, padded};
  const Strips strips(rows, kStripRows);
#if HWY_TARGET <= HWY_AVX2
  if (strips.count() > 1 && strips.height(strips.count() - 1) >= kWidenRowsMin &&
      format != Format::kF32) {
    return run_strips_widened(packed_a, strips, columns, weights, c, taker);
  }
#endif
  for (int64_t k = 0; k < columns; k += kDepth) {
    run_strips(packed_a, strips, columns, weights, k, std::min(kDepth, columns - k), c);
  }
  taker.take(0, rows, 0, kGemmColumns);
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
                   const std::byte* panels, float* c, const TileTaker& taker) {
  if (is_quantized(format)) {
    multiply_quantized_tile(packed_a, rows, columns, format, panels, c);
    return taker.take(0, rows, 0, kGemmColumns);
  }
  HWY_DYNAMIC_DISPATCH(MultiplyTile)(packed_a, rows, columns, format, panels, c, taker);
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
