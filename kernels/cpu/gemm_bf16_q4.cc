// Matrix product with 4-bit weights. Up to one strip of rows is bound by memory: its kernel expands
// weights in registers, once for all rows. More rows share an expansion into a buffer in the L1
// cache.
#include "kernels/base/check.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/weight_layout.h"

#if defined(__x86_64__)

#include "kernels/cpu/gemm_bf16_inl.h"

SPILLWAY_BF16_DOT_BEGIN

namespace spillway::cpu {

namespace {

using namespace bf16_dot;

static_assert(kPairGroup == kQ4Group);

constexpr int kWordPairs = kQ4NibblesPerWord / 2;
constexpr auto kGroupWords = static_cast<int>(kQ4Group / kQ4NibblesPerWord);

constexpr int64_t kExpandGroups = 2;  // Expanded at a time, of two panels: 8 KiB

// The weights of a pair of inputs of 16 outputs, as bf16 in each lane's halves.
//
// A word holds eight nibbles of one output, the first in the lowest bits. For each half of a lane
// one instruction picks the byte that begins at its nibble, and a table of 32 numbers of bf16 takes
// the byte's five lowest bits as an index: the fifth belongs to the next nibble, so each number is
// there twice.
class Expander {
 public:
  Expander() {
    alignas(64) static constexpr uint16_t kNumbers[32] = {
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,  // 0 to 7
        0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,  // 8 to 15
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
        0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
    numbers_ = _mm512_load_si512(kNumbers);
    for (int i = 0; i < kWordPairs; ++i) {
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
  __m512i numbers_;
  __m512i places_[kWordPairs];
};

// Widens sixteen of a group's scales or minima. (All lanes by name: g++ 12 warns of its own header
// otherwise.)
inline __m512 widen(const uint16_t* from) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// A whole group's lines of several panels at once would fill the first-level cache's miss buffers,
// so they go into the second level.
inline void prefetch_group(const Q4PanelGroup* group) {
  const auto* at = reinterpret_cast<const char*>(group) + kPrefetchBytes;
  for (size_t i = 0; i < sizeof(Q4PanelGroup); i += 64) __builtin_prefetch(at + i, 0, 2);
}

// c = a . w over all groups for kPanels panels that are `groups` groups apart.
template <int kRows, int kPanels>
void fused_kernel(const Bf16Strips& a, const Q4PanelGroup* w, int64_t groups, float* c) {
  const Expander expander;
  const uint32_t* bf16_pairs = a.bf16_pairs;
  __m512 sums[kRows][kPanels];
  clear(sums);
  for (int64_t g = 0; g < groups; ++g) {
    __m512 dots[kRows][kPanels];
    clear(dots);
    for (int p = 0; p < kPanels; ++p) prefetch_group(w + p * groups + g);
    for (int word = 0; word < kGroupWords; ++word) {
      __m512i words[kPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        words[p] = _mm512_loadu_si512(w[p * groups + g].words[word]);
      }
#pragma GCC unroll 4
      for (int k = 0; k < kWordPairs; ++k, bf16_pairs += kRows) {
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

using FusedKernel = void (*)(const Bf16Strips&, const Q4PanelGroup*, int64_t, float*);

struct SizedKernel {
  FusedKernel run;
  int panels;  // Panels per call
};
constexpr auto kFusedKernels = kernels_by_rows<kBf16StripRows>([](auto rows) {
  constexpr int kRows = decltype(rows)::value, kPanels = panels_for(kRows);
  return SizedKernel{&fused_kernel<kRows, kPanels>, kPanels};
});

void multiply_fused(const Bf16Strips& a, int64_t rows, int64_t groups, const Q4PanelGroup* w,
                    float* c) {
  const SizedKernel& kernel = kFusedKernels.of[rows - 1];
  for (int64_t panel = 0; panel < kTilePanels; panel += kernel.panels) {
    kernel.run(a, w + panel * groups, groups, c + panel * kPanel);
  }
}

// One expanded group of two panels: weights as pairs, [pair][16] each, and the group's scales and
// minima.
struct Expanded {
  alignas(64) uint32_t bf16_pairs[kTallPanels][kGroupPairs * kPanel];
  const Q4PanelGroup* shared[kTallPanels];

  void expand(const Q4PanelGroup* w, int64_t groups) {
    const Expander expander;
    for (int p = 0; p < kTallPanels; ++p) {
      shared[p] = w + p * groups;
      uint32_t* to = bf16_pairs[p];
      for (const auto& word : shared[p]->words) {
        const __m512i words = _mm512_loadu_si512(word);
#pragma GCC unroll 4
        for (int k = 0; k < kWordPairs; ++k, to += kPanel) {
          _mm512_store_si512(to, expander.pair(words, k));
        }
      }
    }
  }
};

// c += a strip times one expanded group; `sums` are the strip's of this group.
template <int kRows>
void expanded_kernel(const uint32_t* a, const float* sums, const Expanded& w, float* c) {
  __m512 dots[kRows][kTallPanels];
  clear(dots);
  for (int64_t k = 0; k < kGroupPairs; ++k, a += kRows) {
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

using ExpandedKernel = void (*)(const uint32_t*, const float*, const Expanded&, float*);

constexpr auto kExpandedKernels = kernels_by_rows<kBf16StripRows>(
    [](auto rows) -> ExpandedKernel { return &expanded_kernel<decltype(rows)::value>; });

void multiply_expanded(const Bf16Strips& a, int64_t rows, int64_t groups, const Q4PanelGroup* w,
                       float* c) {
  std::fill(c, c + rows * kGemmColumns, 0.0f);
  const Strips strips(rows, kBf16StripRows);
  Expanded expanded[kExpandGroups];
  for (int64_t first = 0; first < groups; first += kExpandGroups) {
    const int64_t many = std::min(kExpandGroups, groups - first);
    for (int64_t panel = 0; panel < kTilePanels; panel += kTallPanels) {
      for (int64_t g = 0; g < many; ++g) {
        prefetch_group(w + panel * groups + first + g);
        prefetch_group(w + (panel + 1) * groups + first + g);
        expanded[g].expand(w + panel * groups + first + g, groups);
      }
      for (int64_t s = 0; s < strips.count(); ++s) {
        const int64_t row = strips.first(s), height = strips.height(s);
        const ExpandedKernel kernel = kExpandedKernels.of[height - 1];
        const uint32_t* bf16_pairs = a.bf16_pairs + row * groups * kGroupPairs;
        const float* sums = a.sums + row * groups;
        for (int64_t g = 0; g < many; ++g) {
          kernel(bf16_pairs + (first + g) * kGroupPairs * height, sums + (first + g) * height,
                 expanded[g], c + row * kGemmColumns + panel * kPanel);
        }
      }
    }
  }
}

}  // namespace

void multiply_bf16_q4_tile(const Bf16Strips& a, int64_t rows, int64_t columns,
                           const std::byte* panels, float* c) {
  const auto* w = reinterpret_cast<const Q4PanelGroup*>(panels);
  if (rows <= kBf16StripRows) {
    multiply_fused(a, rows, pair_groups(columns), w, c);
  } else {
    multiply_expanded(a, rows, pair_groups(columns), w, c);
  }
}

}  // namespace spillway::cpu

SPILLWAY_BF16_DOT_END

#else

namespace spillway::cpu {

void multiply_bf16_q4_tile(const Bf16Strips&, int64_t, int64_t, const std::byte*, float*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
