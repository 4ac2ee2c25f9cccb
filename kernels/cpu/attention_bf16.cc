#include "kernels/cpu/attention_bf16.h"

#include "kernels/base/check.h"
#include "kernels/cpu/attention_pack.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/weight_layout.h"

namespace spillway::cpu {

int64_t key_pairs(int64_t head_size) {
  return padded_columns(MatrixLayout::kPanels16, Format::kBF16, head_size) / 2;
}

}  // namespace spillway::cpu

#if defined(__x86_64__)

#include "kernels/cpu/gemm_bf16_inl.h"

SPILLWAY_BF16_DOT_BEGIN

namespace spillway::cpu {

namespace {

using namespace bf16_dot;

#define SPILLWAY_TRANSPOSE_BODIES
#include "kernels/cpu/transpose_inl.h"

constexpr int64_t kPanelKeys = kKvBlockRows;
static_assert(kPanelKeys == kPanel);

constexpr int64_t kColumnsMax = 1024;  // The widest head

struct Bf16Rows {
  const uint16_t* at;
  int64_t stride;
};

// to[i] of `count` numbers, rounded to nearest even.
inline void round_row(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; i += 16) {
    const auto there =
        static_cast<__mmask16>((uint32_t{1} << std::min<int64_t>(16, count - i)) - 1);
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(there, from + i));
    _mm256_mask_storeu_epi16(to + i, there, (__m256i)rounded);
  }
}

// Rows [first, first + count) of the keys or values, `first` a multiple of 16 and count at most 16:
// where they lie in the cache, or rounded in `scratch`.
Bf16Rows rows_of(const PromptView& view, bool values, int64_t first, int64_t count,
                 float* scratch) {
  const HeadView& head = view.head;
  if (first < view.cached) {  // In one block, in a ring as well
    const std::byte* const rows = view.cached_row(values, view.slot_of(first));
    return {reinterpret_cast<const uint16_t*>(rows), head.head_size};
  }
  auto* rounded = reinterpret_cast<uint16_t*>(scratch);
  const float* source = view.new_row(values, first);
  for (int64_t i = 0; i < count; ++i) {
    round_row(source + i * head.stride, head.head_size, rounded + i * head.head_size);
  }
  return {rounded, head.head_size};
}

// Two rows of values side by side: a pair for each of 16 outputs.
inline __m512i pairs_of(const uint16_t* even, const uint16_t* odd, __mmask16 there) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, even));
  if (odd == nullptr) return low;
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, odd));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

}  // namespace

void pack_key_pairs(const PromptView& view, int64_t first, int64_t end, float* scratch,
                    uint32_t* packed) {
  SPILLWAY_CHECK(view.head.kv_format == Format::kBF16);
  const int64_t size = view.head.head_size, pairs = key_pairs(size), keys = view.keys();
  for (int64_t key = first * kTileKeys; key < end * kTileKeys; key += kPanelKeys) {
    uint32_t* panel = packed + (key - first * kTileKeys) * pairs;
    const int64_t count = std::clamp<int64_t>(keys - key, 0, kPanelKeys);
    if (count == 0) {
      std::fill_n(panel, kPanelKeys * pairs, 0u);
      continue;
    }
    const Bf16Rows rows = rows_of(view, false, key, count, scratch);
    const auto load = [&](int64_t row, int64_t pair) {
      const int64_t left = row < count ? std::clamp<int64_t>(size - 2 * pair, 0, 32) : 0;
      const auto there = static_cast<__mmask32>((uint64_t{1} << left) - 1);
      return _mm512_maskz_loadu_epi16(there, rows.at + row * rows.stride + 2 * pair);
    };
    store_columns(kPanelKeys, pairs, load, panel);
  }
}

void pack_value_pairs(const PromptView& view, int64_t first, int64_t end, float* scratch,
                      uint32_t* packed) {
  SPILLWAY_CHECK(view.head.kv_format == Format::kBF16);
  const int64_t size = view.head.head_size, width = value_width(size), keys = view.keys();
  for (int64_t tile = first; tile < end; ++tile) {
    uint32_t* target = packed + (tile - first) * kTileKeys / 2 * width;
    if (size < width || (tile + 1) * kTileKeys > keys) {
      std::fill_n(target, kTileKeys / 2 * width, 0u);
    }
    for (int64_t key = 0; key < kTileKeys; key += kPanelKeys) {
      const int64_t position = tile * kTileKeys + key;
      const int64_t count = std::clamp<int64_t>(keys - position, 0, kPanelKeys);
      if (count == 0) break;
      const Bf16Rows rows = rows_of(view, true, position, count, scratch);
      for (int64_t row = 0; row < count; row += 2) {
        const uint16_t* even = rows.at + row * rows.stride;
        const uint16_t* odd = row + 1 < count ? even + rows.stride : nullptr;
        uint32_t* to = target + (key + row) / 2 * kPanel;
        for (int64_t i = 0; i < size; i += kPanel) {
          const int64_t left = std::min<int64_t>(kPanel, size - i);
          const auto there = static_cast<__mmask16>((uint32_t{1} << left) - 1);
          const __m512i pair = pairs_of(even + i, odd == nullptr ? nullptr : odd + i, there);
          _mm512_storeu_si512(to + i * kTileKeys / 2, pair);
        }
      }
    }
  }
}

namespace {

// e^x for x up to 0; NaN stays. 2^t is 2^n times 2^f, whose polynomial, with 1 for 2^0, has the
// least relative error for f within 0.5 of 0: 9e-8.
inline __m512 exp_of(__m512 x) {
  const __m512 t = _mm512_maskz_max_ps(0xffff, _mm512_set1_ps(-150.0f),
                                       _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)));
  const __m512 n = _mm512_maskz_roundscale_ps(0xffff, t, _MM_FROUND_TO_NEAREST_INT);
  const __m512 f = _mm512_sub_ps(t, n);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(1.32647273e-3f), f, _mm512_set1_ps(9.67151299e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55073358e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40222424e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147004e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(0xffff, p, n);
}

// The keys of a tile that a row sees, a bit each.
inline uint64_t seen_keys(const TileRows& tile, size_t row) {
  const int64_t position = tile.positions[row] - tile.first_key;
  const int64_t to = std::clamp<int64_t>(position + 1, 0, kTileKeys);
  const int64_t from =
      tile.window == 0 ? 0 : std::clamp<int64_t>(position - tile.window + 1, 0, kTileKeys);
  if (from >= to) return 0;
  return ~uint64_t{0} >> (64 - (to - from)) << from;
}

}  // namespace

void softmax_pairs(const TileRows& tile, size_t first, size_t end, bool keep, float* scores,
                   uint16_t* rounded, float* maximum, float* sum, float* factor) {
  static_assert(kTileKeys == 64);
  alignas(64) float highest[kGemmRowsMax];
  std::copy_n(maximum, kGemmRowsMax, highest);
  for (size_t i = first; i < end; ++i) {
    const float* row = scores + i * kTileKeys;
    const uint64_t seen = seen_keys(tile, i);
    __m512 most = _mm512_set1_ps(highest[i]);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const auto some = static_cast<__mmask16>(seen >> (16 * j));
      most = _mm512_mask_max_ps(most, some, most, _mm512_load_ps(row + 16 * j));
    }
    highest[i] = _mm512_reduce_max_ps(most);
  }
  for (size_t i = first / 16 * 16; i < end; i += 16) {
    const __m512 high = _mm512_load_ps(highest + i), low = _mm512_loadu_ps(maximum + i);
    // Equal ones may be -infinity, of a row that has seen no key yet.
    const __mmask16 same = _mm512_cmp_ps_mask(low, high, _CMP_EQ_OQ);
    const __m512 scale = exp_of(_mm512_sub_ps(low, high));
    _mm512_storeu_ps(factor + i, _mm512_mask_mov_ps(scale, same, _mm512_set1_ps(1.0f)));
    _mm512_storeu_ps(maximum + i, high);
  }
  for (size_t i = first; i < end; ++i) {
    float* row = scores + i * kTileKeys;
    uint16_t* to = rounded + i * kTileKeys;
    const uint64_t seen = seen_keys(tile, i);
    const __m512 high = _mm512_set1_ps(highest[i]);
    __m512 e[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const auto some = static_cast<__mmask16>(seen >> (16 * j));
      e[j] = _mm512_maskz_mov_ps(some, exp_of(_mm512_sub_ps(_mm512_load_ps(row + 16 * j), high)));
      if (keep) _mm512_store_ps(row + 16 * j, e[j]);
    }
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(e[1], e[0]));
    _mm512_storeu_si512(to + 32, (__m512i)_mm512_cvtne2ps_pbh(e[3], e[2]));
    const __m512 all = _mm512_add_ps(_mm512_add_ps(e[0], e[1]), _mm512_add_ps(e[2], e[3]));
    sum[i] = sum[i] * factor[i] + _mm512_reduce_add_ps(all);
  }
}

void pack_rounded_strips(const uint16_t* from, int64_t stride, int64_t rows, int64_t columns,
                         uint32_t* strips) {
  const Strips cut(rows, kBf16StripRows);
  for (int64_t s = 0; s < cut.count(); ++s) {
    const int64_t row = cut.first(s);
    pack_bf16_strip(from + row * stride, stride, cut.height(s), columns,
                    {strips + row * pair_columns(columns)});
  }
}

void pack_pair_strips(const float* from, int64_t stride, int64_t rows, int64_t columns,
                      uint32_t* strips) {
  SPILLWAY_CHECK(columns <= kColumnsMax);
  alignas(64) uint16_t rounded[kBf16StripRows * kColumnsMax];
  const Strips cut(rows, kBf16StripRows);
  for (int64_t s = 0; s < cut.count(); ++s) {
    const int64_t row = cut.first(s), height = cut.height(s);
    for (int64_t i = 0; i < height; ++i) {
      round_row(from + (row + i) * stride, columns, rounded + i * columns);
    }
    pack_bf16_strip(rounded, columns, height, columns, {strips + row * pair_columns(columns)});
  }
}

}  // namespace spillway::cpu

SPILLWAY_BF16_DOT_END

#else

namespace spillway::cpu {

void pack_key_pairs(const PromptView&, int64_t, int64_t, float*, uint32_t*) {
  SPILLWAY_CHECK(false);
}
void pack_value_pairs(const PromptView&, int64_t, int64_t, float*, uint32_t*) {
  SPILLWAY_CHECK(false);
}
void softmax_pairs(const TileRows&, size_t, size_t, bool, float*, uint16_t*, float*, float*,
                   float*) {
  SPILLWAY_CHECK(false);
}
void pack_rounded_strips(const uint16_t*, int64_t, int64_t, int64_t, uint32_t*) {
  SPILLWAY_CHECK(false);
}
void pack_pair_strips(const float*, int64_t, int64_t, int64_t, uint32_t*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
