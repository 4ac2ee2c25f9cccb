// Matrix product of bf16 activations with 8-bit weights that have a scale an output
// (kernels/q8_panels.h). A code, -127 to 127, is exact in bf16, so all inputs are summed as they
// are and a sum is scaled once. Up to one strip of rows is bound by memory: its kernel expands
// weights in registers, once for all rows. More rows share an expansion into a buffer in the L1
// cache.
#include "kernels/base/check.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/q8_panels.h"

#if defined(__x86_64__)

#include "kernels/cpu/gemm_bf16_inl.h"

SPILLWAY_BF16_DOT_BEGIN

namespace spillway::cpu {

namespace {

using namespace bf16_dot;

constexpr int64_t kQuadsExpanded = 32;  // Of two panels, as pairs: 8 KiB
static_assert(kQ8ColumnMultiple % 4 == 0);

// Quads of inputs of 16 outputs, one a lane, as two pairs of bf16.
struct Pairs {
  __m512i first, second;
};

// (All lanes by name: g++ 12 warns of its own header otherwise.)
template <int kByte>
inline __m512i bf16_of(__m512i codes) {
  const __m512i high = _mm512_maskz_slli_epi32(0xffff, codes, 24 - 8 * kByte);
  const __m512i code = _mm512_maskz_srai_epi32(0xffff, high, 24);
  // The upper half of the float32 is the same number in bf16.
  return _mm512_castps_si512(_mm512_maskz_cvtepi32_ps(0xffff, code));
}

inline __m512i pair_of(__m512i low, __m512i high) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_maskz_srli_epi32(0xffff, low, 16), high);
}

inline Pairs expand(const uint8_t* quad) {
  const __m512i zeros = _mm512_set1_epi8(static_cast<char>(kQ8Zero));
  const __m512i codes = _mm512_xor_si512(_mm512_loadu_si512(quad), zeros);
  return {pair_of(bf16_of<0>(codes), bf16_of<1>(codes)),
          pair_of(bf16_of<2>(codes), bf16_of<3>(codes))};
}

// c = a . w, scaled, for kPanels panels from the first on.
template <int kRows, int kPanels>
void q8_fused_kernel(const uint32_t* a, const std::byte* panels, int64_t columns, float* c) {
  const int64_t quads = pair_columns(columns) / 2;
  const uint8_t* codes[kPanels];
  for (int p = 0; p < kPanels; ++p) codes[p] = q8_panel(panels, columns, p).codes;
  __m512 sums[kRows][kPanels];
  clear(sums);
  for (int64_t q = 0; q < quads; ++q, a += 2 * kRows) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const uint8_t* const quad = codes[p] + q * kQ8QuadBytes;
      __builtin_prefetch(quad + kPrefetchBytes, 0, 2);
      const Pairs w = expand(quad);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        sums[i][p] = dot(dot(sums[i][p], a[i], w.first), a[kRows + i], w.second);
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
    const __m512 scale = _mm512_loadu_ps(q8_panel(panels, columns, p).scales);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      _mm512_store_ps(c + i * kGemmColumns + p * kPanel, _mm512_mul_ps(sums[i][p], scale));
    }
  }
}

using Q8FusedKernel = void (*)(const uint32_t*, const std::byte*, int64_t, float*);
struct Q8SizedKernel {
  Q8FusedKernel run;
  int panels;  // Panels per call
};
constexpr auto kQ8FusedKernels = kernels_by_rows<kBf16StripRows>([](auto rows) {
  constexpr int kRows = decltype(rows)::value, kPanels = panels_for(kRows);
  return Q8SizedKernel{&q8_fused_kernel<kRows, kPanels>, kPanels};
});

// Two panels' pairs of some inputs, [pair][16] each.
using ExpandedPairs = uint32_t[kTallPanels][kQuadsExpanded * 2 * kPanel];

// c += a strip times `quads` expanded quads of inputs.
template <int kRows>
void q8_expanded_kernel(const uint32_t* a, const ExpandedPairs& w, int64_t quads, float* c) {
  __m512 sums[kRows][kTallPanels];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int p = 0; p < kTallPanels; ++p) {
      sums[i][p] = _mm512_load_ps(c + i * kGemmColumns + p * kPanel);
    }
  }
  for (int64_t k = 0; k < 2 * quads; ++k, a += kRows) {
    __m512i b[kTallPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kTallPanels; ++p) b[p] = _mm512_load_si512(w[p] + k * kPanel);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int p = 0; p < kTallPanels; ++p) sums[i][p] = dot(sums[i][p], a[i], b[p]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int p = 0; p < kTallPanels; ++p) {
      _mm512_store_ps(c + i * kGemmColumns + p * kPanel, sums[i][p]);
    }
  }
}

using Q8ExpandedKernel = void (*)(const uint32_t*, const ExpandedPairs&, int64_t, float*);
constexpr auto kQ8ExpandedKernels = kernels_by_rows<kBf16StripRows>(
    [](auto rows) -> Q8ExpandedKernel { return &q8_expanded_kernel<decltype(rows)::value>; });

void expand_quads(const uint8_t* codes, int64_t quads, uint32_t* to) {
  for (int64_t q = 0; q < quads; ++q, codes += kQ8QuadBytes, to += 2 * kPanel) {
    __builtin_prefetch(codes + kPrefetchBytes, 0, 2);
    const Pairs w = expand(codes);
    _mm512_store_si512(to, w.first);
    _mm512_store_si512(to + kPanel, w.second);
  }
}

void multiply_q8_expanded(const Bf16Strips& a, int64_t rows, int64_t columns,
                          const std::byte* panels, float* c) {
  std::fill(c, c + rows * kGemmColumns, 0.0f);
  const Strips strips(rows, kBf16StripRows);
  const int64_t quads = pair_columns(columns) / 2;
  alignas(64) ExpandedPairs expanded;
  for (int64_t first = 0; first < quads; first += kQuadsExpanded) {
    const int64_t many = std::min(kQuadsExpanded, quads - first);
    for (int64_t panel = 0; panel < kTilePanels; panel += kTallPanels) {
      for (int p = 0; p < kTallPanels; ++p) {
        expand_quads(q8_panel(panels, columns, panel + p).codes + first * kQ8QuadBytes, many,
                     expanded[p]);
      }
      for (int64_t s = 0; s < strips.count(); ++s) {
        const int64_t row = strips.first(s), height = strips.height(s);
        const Q8ExpandedKernel kernel = kQ8ExpandedKernels.of[height - 1];
        kernel(a.bf16_pairs + row * pair_columns(columns) + first * 2 * height, expanded, many,
               c + row * kGemmColumns + panel * kPanel);
      }
    }
  }
  for (int64_t panel = 0; panel < kTilePanels; ++panel) {
    const __m512 scale = _mm512_loadu_ps(q8_panel(panels, columns, panel).scales);
    for (int64_t row = 0; row < rows; ++row) {
      float* const at = c + row * kGemmColumns + panel * kPanel;
      _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), scale));
    }
  }
}

}  // namespace

void multiply_bf16_q8_tile(const Bf16Strips& a, int64_t rows, int64_t columns,
                           const std::byte* panels, float* c) {
  if (rows > kBf16StripRows) return multiply_q8_expanded(a, rows, columns, panels, c);
  const Q8SizedKernel& kernel = kQ8FusedKernels.of[rows - 1];
  for (int64_t panel = 0; panel < kTilePanels; panel += kernel.panels) {
    kernel.run(a.bf16_pairs, panels + static_cast<size_t>(panel) * q8_panel_bytes(columns), columns,
               c + panel * kPanel);
  }
}

}  // namespace spillway::cpu

SPILLWAY_BF16_DOT_END

#else

namespace spillway::cpu {

void multiply_bf16_q8_tile(const Bf16Strips&, int64_t, int64_t, const std::byte*, float*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
