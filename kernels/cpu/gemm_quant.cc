// Matrix product with quantised weights. Up to one strip of rows is bound by memory: its kernel
// expands weights in registers, once for all rows. More rows share an expansion into a buffer in
// the L1 cache.
#include "kernels/cpu/gemm_quant.h"

#include <algorithm>

#include "kernels/cpu/strips.h"
#include "kernels/q8_panels.h"
#include "kernels/weight_layout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_quant.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/gemm_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DU = hn::RebindToUnsigned<D>;
using VU = hn::Vec<DU>;

// Panels expanded at a time: two panels of 128 inputs, 16 KiB, half the L1 cache beside a strip of
// activations. Two, so that a narrow last strip has enough independent chains.
constexpr int kExpandPanels = 2;
constexpr int64_t kExpandDepth = 128;

// Inputs of a strip that stay in the L2 cache while all panels pass.
constexpr int64_t kFusedDepth = 4096;
static_assert(kFusedDepth % kGroupMax == 0 && kExpandDepth % kGroupMax == 0);

// A panel is blocks of inputs one after another.
template <Format kOf>
struct Blocks {
  using Traits = QuantTraits<kOf>;
  using Block = PanelGroup<kOf>;
};
// Codes alone: their scales, in front of the panel, are for the sums.
template <>
struct Blocks<Format::kQ8> {
  struct Traits {
    static constexpr int kBits = 8;
    static constexpr int64_t kGroup = kQ8ColumnMultiple, kFields = 4;
    static constexpr uint32_t kMask = 255;
  };
  struct Block {
    uint32_t words[Traits::kGroup / Traits::kFields][kPanel];
  };
};
template <Format kOf>
using TraitsOf = typename Blocks<kOf>::Traits;
template <Format kOf>
using BlockOf = typename Blocks<kOf>::Block;

// The block `bytes` further.
template <class Block>
HWY_INLINE const Block* ahead(const Block* block, int64_t bytes) {
  return reinterpret_cast<const Block*>(reinterpret_cast<const std::byte*>(block) + bytes);
}

// One panel's minima of a block, and its scales for codes at each place of a word's lower half: a
// code that stays where it is counts 2^(bits * i) times too much, which a scale so many times
// smaller undoes exactly. That saves a shift a weight.
template <Format kOf>
struct GroupScales {
  using Traits = TraitsOf<kOf>;
  static constexpr int kPlaces = 16 / Traits::kBits;
  V scale[kPlaces][kPanelVectors];
  V minimum[kPanelVectors];

  HWY_INLINE void load(const BlockOf<kOf>& block) {
    constexpr float kSmaller = 1.0f / static_cast<float>(1 << Traits::kBits);
    if constexpr (kOf == Format::kQ8) {
#pragma GCC unroll 16
      for (int j = 0; j < kPanelVectors; ++j) {
        scale[0][j] = hn::Set(D(), 1.0f);
        minimum[j] = hn::Set(D(), -static_cast<float>(kQ8Zero));
      }
    } else {
      load_weights(reinterpret_cast<const hwy::float16_t*>(block.minimum), minimum);
      load_weights(reinterpret_cast<const hwy::float16_t*>(block.scale), scale[0]);
    }
#pragma GCC unroll 4
    for (int i = 1; i < kPlaces; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < kPanelVectors; ++j) {
        scale[i][j] = hn::Mul(scale[i - 1][j], hn::Set(D(), kSmaller));
      }
    }
  }
};

// A word of inputs of one panel's outputs.
template <Format kOf>
struct GroupWords {
  using Traits = TraitsOf<kOf>;
  VU words[kPanelVectors];

  HWY_INLINE void load(const uint32_t* HWY_RESTRICT from) {
#pragma GCC unroll 16
    for (int j = 0; j < kPanelVectors; ++j) {
      words[j] = hn::LoadU(DU(), from + static_cast<size_t>(j) * kLanes);
    }
  }
  // Expands input `k` of the word; each once, in order.
  HWY_INLINE void expand(int64_t k, const GroupScales<kOf>& scales, V* HWY_RESTRICT b) {
    const hn::RebindToSigned<D> di;
    const int64_t place = k % GroupScales<kOf>::kPlaces;
#pragma GCC unroll 16
    for (int j = 0; j < kPanelVectors; ++j) {
      if (k == GroupScales<kOf>::kPlaces) words[j] = hn::ShiftRight<16>(words[j]);
      const VU codes = hn::And(words[j], hn::Set(DU(), Traits::kMask << (Traits::kBits * place)));
      b[j] = hn::MulAdd(hn::ConvertTo(D(), hn::BitCast(di, codes)), scales.scale[place][j],
                        scales.minimum[j]);
    }
  }
};

// Adds `count` inputs from one row of words of each panel. `count` is a constant where it is all of
// a word's, so that the loop unrolls.
template <Format kOf, int kRows, int kPanels>
HWY_INLINE void add_words(const float* HWY_RESTRICT a, GroupWords<kOf>* HWY_RESTRICT words,
                          const GroupScales<kOf>* HWY_RESTRICT scales, int64_t count,
                          Sums<kRows, kPanels>& sums) {
#pragma GCC unroll 8
  for (int64_t k = 0; k < count; ++k) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      V b[kPanelVectors];
      words[p].expand(k, scales[p], b);
      sums.add(a + k * kRows, p, b);
    }
  }
}

// c += a . w over `depth` inputs; a is [k][kRows], w the first block of the first of kPanels panels
// that are `stride` bytes apart.
template <Format kOf, int kRows, int kPanels>
void fused_kernel(const float* HWY_RESTRICT a, const BlockOf<kOf>* HWY_RESTRICT w, int64_t stride,
                  int64_t depth, float* HWY_RESTRICT c) {
  using Traits = TraitsOf<kOf>;
  Sums<kRows, kPanels> sums;
  sums.load(c);
  for (int64_t first = 0; first < depth; first += Traits::kGroup, ++w) {
    GroupScales<kOf> scales[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      scales[p].load(*ahead(w, p * stride));
      const auto* block = reinterpret_cast<const std::byte*>(ahead(w, p * stride));
      // All these lines at once would fill the first-level cache's miss buffers, so they go into
      // the second level.
      for (size_t i = 0; i < sizeof(BlockOf<kOf>); i += 64) {
        __builtin_prefetch(block + kPrefetchBytes + i, 0, 2);
      }
    }
    const int64_t count = std::min(Traits::kGroup, depth - first);
    for (int64_t k = 0; k < count; k += Traits::kFields) {
      GroupWords<kOf> words[kPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        words[p].load(ahead(w, p * stride)->words[k / Traits::kFields]);
      }
      const float* HWY_RESTRICT at = a + (first + k) * kRows;
      if (count - k >= Traits::kFields) {
        add_words<kOf, kRows, kPanels>(at, words, scales, Traits::kFields, sums);
      } else {
        add_words<kOf, kRows, kPanels>(at, words, scales, count - k, sums);
      }
    }
  }
  sums.store(c);
}

// Panels per fused kernel: four chains hide the latency of the multiply-add behind the expansion's
// own instructions (measured on Zen 3: 1 row 3.4 ms with two panels, 4.3 with one; 2 rows 4.7 ms
// with one, 5.3 with two, which leave no registers for scales).
constexpr int fused_panels(int rows) {
  const int chains = rows * kPanelVectors;
  return chains >= 4 ? 1 : chains >= 2 ? 2 : 4;
}

template <Format kOf>
struct SizedKernel {
  void (*run)(const float*, const BlockOf<kOf>*, int64_t, int64_t, float*);
  int panels;  // Panels per call
};
template <Format kOf>
constexpr auto kFusedKernels = kernels_by_rows<kStripRows>([](auto rows) {
  constexpr int kRows = decltype(rows)::value, kPanels = fused_panels(kRows);
  return SizedKernel<kOf>{&fused_kernel<kOf, kRows, kPanels>, kPanels};
});

template <Format kOf>
void MultiplyFused(const float* a, int64_t rows, int64_t columns, const BlockOf<kOf>* w,
                   int64_t stride, float* c) {
  const SizedKernel<kOf>& kernel = kFusedKernels<kOf>.of[rows - 1];
  for (int64_t k = 0; k < columns; k += kFusedDepth) {
    const int64_t depth = std::min(kFusedDepth, columns - k);
    for (int64_t panel = 0; panel < kGemmColumns / kPanel; panel += kernel.panels) {
      kernel.run(a + k * rows, ahead(w, panel * stride) + k / TraitsOf<kOf>::kGroup, stride, depth,
                 c + panel * kPanel);
    }
  }
}

// Expands inputs of one panel to float32 [input][16], whole blocks.
template <Format kOf>
void expand(const BlockOf<kOf>* HWY_RESTRICT w, int64_t blocks, float* HWY_RESTRICT to) {
  for (int64_t g = 0; g < blocks; ++g) {
    GroupScales<kOf> scales;
    scales.load(w[g]);
    for (const auto& word : w[g].words) {
      GroupWords<kOf> words;
      words.load(word);
#pragma GCC unroll 8
      for (int64_t k = 0; k < TraitsOf<kOf>::kFields; ++k) {
        V b[kPanelVectors];
        words.expand(k, scales, b);
#pragma GCC unroll 16
        for (int j = 0; j < kPanelVectors; ++j) {
          hn::Store(b[j], D(), to + j * static_cast<int>(kLanes));
        }
        to += kPanel;
      }
    }
  }
}

// Multiplies one strip by the expanded panels.
template <int kRows>
void expanded_strip(const float* a, const float* w, int64_t depth, float* c) {
  constexpr int kPanels = std::min(kExpandPanels, panels_for(kRows));
  for (int panel = 0; panel < kExpandPanels; panel += kPanels) {
    micro_kernel<kRows, kPanels>(a, w + panel * kExpandDepth * kPanel, kExpandDepth * kPanel, depth,
                                 c + panel * kPanel);
  }
}

using ExpandedStrip = void (*)(const float*, const float*, int64_t, float*);

constexpr auto kExpandedStrips = kernels_by_rows<kStripRows>(
    [](auto rows) -> ExpandedStrip { return &expanded_strip<decltype(rows)::value>; });

template <Format kOf>
void MultiplyExpanded(const float* a, int64_t rows, int64_t columns, const BlockOf<kOf>* w,
                      int64_t stride, float* c) {
  constexpr int64_t kGroup = TraitsOf<kOf>::kGroup;
  const Strips strips(rows, kStripRows);
  HWY_ALIGN float expanded[kExpandPanels * kExpandDepth * kPanel];
  for (int64_t k = 0; k < columns; k += kExpandDepth) {
    const int64_t depth = std::min(kExpandDepth, columns - k);
    for (int64_t panel = 0; panel < kGemmColumns / kPanel; panel += kExpandPanels) {
      for (int64_t p = 0; p < kExpandPanels; ++p) {
        expand<kOf>(ahead(w, (panel + p) * stride) + k / kGroup, (depth + kGroup - 1) / kGroup,
                    expanded + p * kExpandDepth * kPanel);
      }
      float* target = c + panel * kPanel;
      for (int64_t i = 0; i < strips.count(); ++i) {
        const int64_t row = strips.first(i), height = strips.height(i);
        const ExpandedStrip strip = kExpandedStrips.of[height - 1];
        strip(a + row * columns + k * height, expanded, depth, target + row * kGemmColumns);
      }
    }
  }
}

template <Format kOf>
void MultiplyBlocks(const float* a, int64_t rows, int64_t columns, const std::byte* first,
                    int64_t stride, float* c) {
  const auto* w = reinterpret_cast<const BlockOf<kOf>*>(first);
  if (rows <= kStripRows) {
    MultiplyFused<kOf>(a, rows, columns, w, stride, c);
  } else {
    MultiplyExpanded<kOf>(a, rows, columns, w, stride, c);
  }
}

// Sums of codes become those of numbers.
void ScaleSums(int64_t rows, int64_t columns, const std::byte* panels, float* c) {
  for (int64_t panel = 0; panel < kGemmColumns / kPanel; ++panel, c += kPanel) {
    V scales[kPanelVectors];
    load_weights(q8_panel(panels, columns, panel).scales, scales);
    for (int64_t row = 0; row < rows; ++row) {
      float* const at = c + row * kGemmColumns;
#pragma GCC unroll 16
      for (int j = 0; j < kPanelVectors; ++j) {
        float* const some = at + j * static_cast<int>(kLanes);
        hn::StoreU(hn::Mul(hn::LoadU(D(), some), scales[j]), D(), some);
      }
    }
  }
}

void MultiplyQuantizedTile(const float* packed_a, int64_t rows, int64_t columns, Format format,
                           const std::byte* panels, float* c) {
  std::fill(c, c + rows * kGemmColumns, 0.0f);
  if (format == Format::kQ8) {
    MultiplyBlocks<Format::kQ8>(packed_a, rows, columns, panels + kQ8ScaleBytes,
                                static_cast<int64_t>(q8_panel_bytes(columns)), c);
    return ScaleSums(rows, columns, panels, c);
  }
  with_quant_traits(format, [&](auto traits) {
    constexpr Format kOf = decltype(traits)::kFormat;
    const int64_t groups = padded_columns(MatrixLayout::kPanels16, kOf, columns) / traits.kGroup;
    MultiplyBlocks<kOf>(packed_a, rows, columns, panels,
                        groups * static_cast<int64_t>(sizeof(PanelGroup<kOf>)), c);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {

HWY_EXPORT(MultiplyQuantizedTile);

void multiply_quantized_tile(const float* packed_a, int64_t rows, int64_t columns, Format format,
                             const std::byte* panels, float* c) {
  HWY_DYNAMIC_DISPATCH(MultiplyQuantizedTile)
  (packed_a, rows, columns, format, panels, c);
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
