// Matrix product with weights quantised in groups. Up to one strip of rows is bound by memory: its
// kernel expands weights in registers, once for all rows. More rows share an expansion into a
// buffer in the L1 cache.
#include "kernels/base/check.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/weight_layout.h"

#if defined(__x86_64__)

#include "kernels/cpu/gemm_bf16_inl.h"

SPILLWAY_BF16_DOT_BEGIN

namespace spillway::cpu {

namespace {

using namespace bf16_dot;

template <Format kOf>
constexpr auto kWordPairs = static_cast<int>(QuantTraits<kOf>::kFields / 2);
template <Format kOf>
constexpr auto kGroupWords = static_cast<int>(QuantTraits<kOf>::kWords);
template <Format kOf>
constexpr int64_t kGroupPairs = QuantTraits<kOf>::kGroup / 2;

// Groups expanded at a time, of two panels: 8 KiB.
template <Format kOf>
constexpr int64_t kExpandGroups = 128 / QuantTraits<kOf>::kGroup;

// The weights of a pair of inputs of 16 outputs, as bf16 in each lane's halves.
template <int kBits>
class Expander;

// Four bits.
//
// A word holds eight nibbles of one output, the first in the lowest bits. For each half of a lane
// one instruction picks the byte that begins at its nibble, and a table of 32 numbers of bf16 takes
// the byte's five lowest bits as an index: the fifth belongs to the next nibble, so each number is
// there twice.
template <>
class Expander<4> {
 public:
  Expander() {
    alignas(64) static constexpr uint16_t kNumbers[32] = {
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,  // 0 to 7
        0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,  // 8 to 15
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
        0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
    numbers_ = _mm512_load_si512(kNumbers);
    for (int i = 0; i < kPairs; ++i) {
      // The upper byte of a half is no part of the index.
      const auto half = [&](int bit) { return static_cast<uint64_t>(bit) * 0x0101u; };
      const int first = 2 * i * 4, second = first + 4;
      const uint64_t places =
          half(first) | half(second) << 16 | half(32 + first) << 32 | half(32 + second) << 48;
      places_[i] = _mm512_set1_epi64(static_cast<int64_t>(places));
    }
  }

  // Pair `i` of a row of words.
  __m512i pair(__m512i words, int i) const {
    return _mm512_permutexvar_epi16(_mm512_multishift_epi64_epi8(places_[i], words), numbers_);
  }

 private:
  static constexpr int kPairs = 4;  // Of a word
  __m512i numbers_;
  __m512i places_[kPairs];
};

// Eight bits: converted to float32, of which the upper half is the same number in bf16.
template <>
class Expander<8> {
 public:
  // Pair `i` of a row of words.
  __m512i pair(__m512i words, int i) const {
    const __m512i first = number(words, 16 * i), second = number(words, 16 * i + 8);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_maskz_srli_epi32(0xffff, first, 16), second);
  }

 private:
  static __m512i number(__m512i words, int shift) {
    const __m512i code =
        _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, words, static_cast<unsigned>(shift)),
                         _mm512_set1_epi32(255));
    return _mm512_castps_si512(_mm512_maskz_cvtepi32_ps(0xffff, code));
  }
};

// Widens sixteen of a group's scales or minima. (All lanes by name: g++ 12 warns of its own header
// otherwise.)
inline __m512 widen(const uint16_t* from) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// A whole group's lines of several panels at once would fill the first-level cache's miss buffers,
// so they go into the second level.
template <Format kOf>
inline void prefetch_group(const PanelGroup<kOf>* group) {
  const auto* at = reinterpret_cast<const char*>(group) + kPrefetchBytes;
  for (size_t i = 0; i < sizeof(PanelGroup<kOf>); i += 64) __builtin_prefetch(at + i, 0, 2);
}

// c = a . w over all groups for kPanels panels that are `groups` groups apart.
template <Format kOf, int kRows, int kPanels>
void fused_kernel(const Bf16Strips& a, const PanelGroup<kOf>* w, int64_t groups, float* c) {
  const Expander<QuantTraits<kOf>::kBits> expander;
  const uint32_t* bf16_pairs = a.bf16_pairs;
  __m512 sums[kRows][kPanels];
  clear(sums);
  for (int64_t g = 0; g < groups; ++g) {
    __m512 dots[kRows][kPanels];
    clear(dots);
    for (int p = 0; p < kPanels; ++p) prefetch_group(w + p * groups + g);
    for (int word = 0; word < kGroupWords<kOf>; ++word) {
      __m512i words[kPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        words[p] = _mm512_loadu_si512(w[p * groups + g].words[word]);
      }
#pragma GCC unroll 4
      for (int k = 0; k < kWordPairs<kOf>; ++k, bf16_pairs += kRows) {
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p) {
          const __m512i b = expander.pair(words[p], k);
#pragma GCC unroll 16
          for (int i = 0; i < kRows; ++i) dots[i][p] = dot(dots[i][p], bf16_pairs[i], b);
        }
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const __m512 scale = widen(w[p * groups + g].scale);
      const __m512 minimum = widen(w[p * groups + g].minimum);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const __m512 scaled = _mm512_fmadd_ps(dots[i][p], scale, sums[i][p]);
        sums[i][p] = _mm512_fmadd_ps(_mm512_set1_ps(a.sums[g * kRows + i]), minimum, scaled);
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int p = 0; p < kPanels; ++p) {
      _mm512_store_ps(c + i * kGemmColumns + p * kPanel, sums[i][p]);
    }
  }
}

template <Format kOf>
struct SizedKernel {
  void (*run)(const Bf16Strips&, const PanelGroup<kOf>*, int64_t, float*);
  int panels;  // Panels per call
};
template <Format kOf>
constexpr auto kFusedKernels = kernels_by_rows<kBf16StripRows>([](auto rows) {
  constexpr int kRows = decltype(rows)::value, kPanels = panels_for(kRows);
  return SizedKernel<kOf>{&fused_kernel<kOf, kRows, kPanels>, kPanels};
});

template <Format kOf>
void multiply_fused(const Bf16Strips& a, int64_t rows, int64_t groups, const PanelGroup<kOf>* w,
                    float* c) {
  const SizedKernel<kOf>& kernel = kFusedKernels<kOf>.of[rows - 1];
  for (int64_t panel = 0; panel < kTilePanels; panel += kernel.panels) {
    kernel.run(a, w + panel * groups, groups, c + panel * kPanel);
  }
}

// One expanded group of two panels: weights as pairs, [pair][16] each, and the group's scales and
// minima.
template <Format kOf>
struct Expanded {
  alignas(64) uint32_t bf16_pairs[kTallPanels][kGroupPairs<kOf> * kPanel];
  const PanelGroup<kOf>* shared[kTallPanels];

  void expand(const PanelGroup<kOf>* w, int64_t groups) {
    const Expander<QuantTraits<kOf>::kBits> expander;
    for (int p = 0; p < kTallPanels; ++p) {
      shared[p] = w + p * groups;
      uint32_t* to = bf16_pairs[p];
      for (const auto& word : shared[p]->words) {
        const __m512i words = _mm512_loadu_si512(word);
#pragma GCC unroll 4
        for (int k = 0; k < kWordPairs<kOf>; ++k, to += kPanel) {
          _mm512_store_si512(to, expander.pair(words, k));
        }
      }
    }
  }
};

// c += a strip times one expanded group; `sums` are the strip's of this group.
template <Format kOf, int kRows>
void expanded_kernel(const uint32_t* a, const float* sums, const Expanded<kOf>& w, float* c) {
  __m512 dots[kRows][kTallPanels];
  clear(dots);
  for (int64_t k = 0; k < kGroupPairs<kOf>; ++k, a += kRows) {
    __m512i b[kTallPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kTallPanels; ++p) b[p] = _mm512_load_si512(w.bf16_pairs[p] + k * kPanel);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int p = 0; p < kTallPanels; ++p) dots[i][p] = dot(dots[i][p], a[i], b[p]);
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < kTallPanels; ++p) {
    const __m512 scale = widen(w.shared[p]->scale), minimum = widen(w.shared[p]->minimum);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      float* const at = c + i * kGemmColumns + p * kPanel;
      const __m512 scaled = _mm512_fmadd_ps(dots[i][p], scale, _mm512_load_ps(at));
      _mm512_store_ps(at, _mm512_fmadd_ps(_mm512_set1_ps(sums[i]), minimum, scaled));
    }
  }
}

template <Format kOf>
using ExpandedKernel = void (*)(const uint32_t*, const float*, const Expanded<kOf>&, float*);

template <Format kOf>
constexpr auto kExpandedKernels = kernels_by_rows<kBf16StripRows>(
    [](auto rows) -> ExpandedKernel<kOf> { return &expanded_kernel<kOf, decltype(rows)::value>; });

template <Format kOf>
void multiply_expanded(const Bf16Strips& a, int64_t rows, int64_t columns, int64_t groups,
                       const PanelGroup<kOf>* w, float* c) {
  std::fill(c, c + rows * kGemmColumns, 0.0f);
  const Strips strips(rows, kBf16StripRows);
  Expanded<kOf> expanded[kExpandGroups<kOf>];
  for (int64_t first = 0; first < groups; first += kExpandGroups<kOf>) {
    const int64_t many = std::min(kExpandGroups<kOf>, groups - first);
    for (int64_t panel = 0; panel < kTilePanels; panel += kTallPanels) {
      for (int64_t g = 0; g < many; ++g) {
        prefetch_group(w + panel * groups + first + g);
        prefetch_group(w + (panel + 1) * groups + first + g);
        expanded[g].expand(w + panel * groups + first + g, groups);
      }
      for (int64_t s = 0; s < strips.count(); ++s) {
        const int64_t row = strips.first(s), height = strips.height(s);
        const ExpandedKernel<kOf> kernel = kExpandedKernels<kOf>.of[height - 1];
        const uint32_t* bf16_pairs = a.bf16_pairs + row * pair_columns(columns);
        const float* sums = a.sums + row * groups;
        for (int64_t g = 0; g < many; ++g) {
          kernel(bf16_pairs + (first + g) * kGroupPairs<kOf> * height, sums + (first + g) * height,
                 expanded[g], c + row * kGemmColumns + panel * kPanel);
        }
      }
    }
  }
}

}  // namespace

void multiply_bf16_quantized_tile(const Bf16Strips& a, int64_t rows, int64_t columns, Format format,
                                  const std::byte* panels, float* c) {
  with_quant_traits(format, [&](auto traits) {
    constexpr Format kOf = decltype(traits)::kFormat;
    SPILLWAY_CHECK(a.sum_group == traits.kGroup);
    const auto* w = reinterpret_cast<const PanelGroup<kOf>*>(panels);
    const int64_t groups = sum_groups(columns, traits.kGroup);
    if (rows <= kBf16StripRows) {
      multiply_fused<kOf>(a, rows, groups, w, c);
    } else {
      multiply_expanded<kOf>(a, rows, columns, groups, w, c);
    }
  });
}

}  // namespace spillway::cpu

SPILLWAY_BF16_DOT_END

#else

namespace spillway::cpu {

void multiply_bf16_quantized_tile(const Bf16Strips&, int64_t, int64_t, Format, const std::byte*,
                                  float*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
