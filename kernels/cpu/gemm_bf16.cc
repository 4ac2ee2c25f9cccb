// Packing of activations, and their matrix product with bf16 weights, whose panels already hold
// pairs.
#include "kernels/cpu/gemm_bf16.h"

#include "kernels/base/check.h"
#include "kernels/weight_layout.h"

namespace spillway::cpu {

int64_t pair_columns(int64_t columns) {
  return (columns + kGroupMax - 1) / kGroupMax * kGroupMax / 2;
}
int64_t sum_groups(int64_t columns, int64_t sum_group) {
  return (columns + sum_group - 1) / sum_group;
}

}  // namespace spillway::cpu

#if defined(__x86_64__)

#include "kernels/cpu/gemm_bf16_inl.h"

SPILLWAY_BF16_DOT_BEGIN

namespace spillway::cpu {

namespace {

using namespace bf16_dot;

constexpr int64_t kDepth = 128;  // Pairs of two panels, 16 KiB, that stay in the L1 cache

// Sum of a group's `count` bf16 numbers, always in the same order.
float sum_of(const uint16_t* group, int64_t count) {
  const __m512i ones = _mm512_set1_epi16(0x3f80);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < kGroupMax; i += 32) {
    const int64_t left = std::clamp<int64_t>(count - i, 0, 32);
    const auto there = static_cast<__mmask32>((uint64_t{1} << left) - 1);
    const __m512i some = _mm512_maskz_loadu_epi16(there, group + i);
    sum = _mm512_dpbf16_ps(sum, (__m512bh)some, (__m512bh)ones);
  }
  return _mm512_reduce_add_ps(sum);
}

#define SPILLWAY_TRANSPOSE_BODIES
#include "kernels/cpu/transpose_inl.h"

// Weights that a strip prefetches while it works: of those that all strips use next, every
// `strips`-th pair from its own number on. Otherwise the first strip alone would wait for memory,
// which would idle during the others.
struct Ahead {
  const uint32_t* next;
  int64_t strips, strip;
};

// c (+)= a strip times kPanels panels that are `panel_pairs` pairs apart, over `depth` pairs.
template <int kRows, int kPanels>
void kernel(const uint32_t* a, const uint32_t* w, int64_t panel_pairs, int64_t depth,
            bool accumulate, const Ahead& ahead, float* c) {
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
  int64_t due = ahead.strips;
  const uint32_t* next = ahead.next + ahead.strip * kPanel;
  for (int64_t k = 0; k < depth; ++k, a += kRows) {
    if (--due == 0) {
      due = ahead.strips;
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        __builtin_prefetch(next + p * panel_pairs * kPanel, 0, 2);
      }
      next += ahead.strips * kPanel;
    }
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

using Kernel = void (*)(const uint32_t*, const uint32_t*, int64_t, int64_t, bool, const Ahead&,
                        float*);

// Kernels for a tile of one strip, of `alone_panels` panels, and for a strip beside others, of
// kTallPanels.
struct StripKernels {
  Kernel alone;
  int alone_panels;
  Kernel beside;
};
constexpr auto kKernels = kernels_by_rows<kBf16StripRows>([](auto rows) {
  constexpr int kRows = decltype(rows)::value, kFew = panels_for(kRows);
  return StripKernels{&kernel<kRows, kFew>, kFew, &kernel<kRows, kTallPanels>};
});

// `taker`: null where more inputs follow.
void multiply_pairs(const Bf16Strips& a, int64_t rows, int64_t columns, const uint32_t* w,
                    bool accumulate, float* c, const TileTaker* taker) {
  const int64_t all = padded_columns(MatrixLayout::kPanels16, Format::kBF16, columns) / 2;
  const Strips strips(rows, kBf16StripRows);
  const bool tall = strips.count() > 1;
  const int64_t stretch = tall ? kDepth : all;
  const int panels = tall ? kTallPanels : kKernels.of[rows - 1].alone_panels;
  const int64_t stretches = (all + stretch - 1) / stretch;
  const OutputsAhead outputs(taker == nullptr || !tall ? TileOutputs{} : taker->outputs,
                             kBf16StripRows, stretches);
  for (int64_t at = 0; at < stretches; ++at) {
    const int64_t k = at * stretch, depth = std::min(stretch, all - k);
    for (int64_t panel = 0; panel < kTilePanels; panel += panels) {
      // The next tile's first inputs, if any, follow the last inputs of a tile.
      const bool last_panels = panel + panels == kTilePanels;
      const int64_t next = !last_panels        ? (panel + panels) * all + k
                           : k + stretch < all ? k + stretch
                                               : kTilePanels * all;
      for (int64_t s = 0; s < strips.count(); ++s) {
        const int64_t row = strips.first(s), height = strips.height(s);
        const StripKernels& kernels = kKernels.of[height - 1];
        const Kernel run = tall ? kernels.beside : kernels.alone;
        const Ahead ahead{w + next * kPanel, tall ? strips.count() : all + 1, s};
        outputs.ask(at, row, height, panel * kPanel, panels * kPanel);
        run(a.bf16_pairs + row * pair_columns(columns) + k * height, w + (panel * all + k) * kPanel,
            all, depth, accumulate || k > 0, ahead, c + row * kGemmColumns + panel * kPanel);
        if (taker != nullptr && at + 1 == stretches) {
          taker->take(row, height, panel * kPanel, panels * kPanel);
        }
      }
    }
  }
}

}  // namespace

void pack_bf16_strip(const uint16_t* a, int64_t stride, int64_t height, int64_t columns,
                     const Bf16Strips& strip) {
  static_assert(kBf16StripRows <= 16);
  const auto load = [&](int64_t row, int64_t pair) {
    const int64_t left = std::clamp<int64_t>(columns - 2 * pair, 0, 32);
    const auto there = static_cast<__mmask32>((uint64_t{1} << left) - 1);
    return _mm512_maskz_loadu_epi16(there, a + row * stride + 2 * pair);
  };
  store_columns(height, pair_columns(columns), load, strip.bf16_pairs);
  if (strip.sums == nullptr) return;
  const int64_t group = strip.sum_group;
  for (int64_t g = 0; g < sum_groups(columns, group); ++g) {
    for (int64_t i = 0; i < height; ++i) {
      strip.sums[g * height + i] =
          sum_of(a + i * stride + g * group, std::min(group, columns - g * group));
    }
  }
}

void multiply_bf16_tile(const Bf16Strips& a, int64_t rows, int64_t columns, Format format,
                        const std::byte* panels, float* c, const TileTaker& taker) {
  if (format == Format::kBF16) {
    return multiply_pairs(a, rows, columns, reinterpret_cast<const uint32_t*>(panels), false, c,
                          &taker);
  }
  SPILLWAY_CHECK(is_quantized(format));
  if (format == Format::kQ8) {
    multiply_bf16_q8_tile(a, rows, columns, panels, c);
  } else {
    multiply_bf16_quantized_tile(a, rows, columns, format, panels, c);
  }
  taker.take(0, rows, 0, kGemmColumns);
}

void multiply_bf16_pairs(const Bf16Strips& a, int64_t rows, int64_t columns, const uint32_t* panels,
                         bool accumulate, float* c) {
  multiply_pairs(a, rows, columns, panels, accumulate, c, nullptr);
}

}  // namespace spillway::cpu

SPILLWAY_BF16_DOT_END

namespace spillway::cpu {

bool has_bf16_dot() {
  static const bool has =
      __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0;
  return has;
}

bool bf16_dot_is_fastest() {
  return has_bf16_dot() && __builtin_cpu_is("amd") != 0;
}

}  // namespace spillway::cpu

#else

namespace spillway::cpu {

bool has_bf16_dot() {
  return false;
}
bool bf16_dot_is_fastest() {
  return false;
}
void pack_bf16_strip(const uint16_t*, int64_t, int64_t, int64_t, const Bf16Strips&) {
  SPILLWAY_CHECK(false);
}
void multiply_bf16_tile(const Bf16Strips&, int64_t, int64_t, Format, const std::byte*, float*,
                        const TileTaker&) {
  SPILLWAY_CHECK(false);
}
void multiply_bf16_pairs(const Bf16Strips&, int64_t, int64_t, const uint32_t*, bool, float*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
