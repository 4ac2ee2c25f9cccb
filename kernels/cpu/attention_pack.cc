#include "kernels/cpu/attention_pack.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cpu/gemm_f32.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_pack.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/quant_inl.h"
#include "kernels/cpu/vector_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T, class Widen>
void widen_row(const T* HWY_RESTRICT from, size_t size, const Widen& widen_one,
               float* HWY_RESTRICT to) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= size; i += lanes) hn::StoreU(load_widened(d, from + i), d, to + i);
  for (; i < size; ++i) to[i] = widen_one(reinterpret_cast<const uint16_t*>(from)[i]);
}

// A row of the cache, in a format that is not float32, as float32.
void ExpandRow(Format format, const std::byte* HWY_RESTRICT row, size_t size,
               float* HWY_RESTRICT to) {
  if (is_quantized(format)) return expand_quantized_row(format, row, size, to);
  if (format == Format::kBF16) {
    widen_row(reinterpret_cast<const hwy::bfloat16_t*>(row), size, bf16_to_f32, to);
  } else {
    SPILLWAY_CHECK(format == Format::kF16);
    widen_row(reinterpret_cast<const hwy::float16_t*>(row), size, f16_to_f32, to);
  }
}

void StoreKvRow(Format format, const float* HWY_RESTRICT from, size_t size, std::byte* to) {
  if (is_quantized(format)) {
    store_quantized_row(format, from, size, to);
  } else {
    store_row(element_of(format), from, size, to);
  }
}

void StoreRows(const HeadView& view, int64_t token, int64_t count, int64_t slot) {
  const auto size = static_cast<size_t>(view.head_size);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = (token + i) * view.stride;
    StoreKvRow(view.kv_format, view.k + from, size, view.key_at(slot + i));
    StoreKvRow(view.kv_format, view.v + from, size, view.value_at(slot + i));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {

HWY_EXPORT(ExpandRow);
HWY_EXPORT(StoreKvRow);
HWY_EXPORT(StoreRows);

void store_rows(const HeadView& view, int64_t token, int64_t count, int64_t slot) {
  HWY_DYNAMIC_DISPATCH(StoreRows)(view, token, count, slot);
}

namespace {

constexpr int64_t kPanelKeys = kKvBlockRows;
static_assert(kPanelKeys == 16);

struct FloatRows {
  const float* at;
  int64_t stride;
};

// Rows [first, first + count) of the keys or values, `first` a multiple of 16 and count at most 16:
// where they lie, or in `scratch`.
FloatRows rows_of(const PromptView& view, bool values, int64_t first, int64_t count,
                  float* scratch) {
  const HeadView& head = view.head;
  // These lie in one block, in a ring as well.
  const int64_t slot = view.chunk_ring == 0 ? first : first % view.chunk_ring;
  const bool cached = first < view.cached;
  if (head.kv_format == Format::kF32) {
    if (!cached) return {view.new_row(values, first), head.stride};
    return {reinterpret_cast<const float*>(view.cached_row(values, slot)), head.head_size};
  }
  auto* stored = reinterpret_cast<std::byte*>(scratch + kPanelKeys * head.head_size);
  const auto size = static_cast<size_t>(head.head_size);
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* row = stored;
    if (cached) {
      row = view.cached_row(values, slot + i);
    } else {
      HWY_DYNAMIC_DISPATCH(StoreKvRow)
      (head.kv_format, view.new_row(values, first + i), size, stored);
    }
    HWY_DYNAMIC_DISPATCH(ExpandRow)(head.kv_format, row, size, scratch + i * head.head_size);
  }
  return {scratch, head.head_size};
}

}  // namespace

void pack_key_tiles(const PromptView& view, int64_t first, int64_t end, float* scratch,
                    float* packed) {
  const int64_t size = view.head.head_size, depth = key_depth(size), keys = view.keys();
  for (int64_t key = first * kTileKeys; key < end * kTileKeys; key += kPanelKeys) {
    float* panel = packed + (key - first * kTileKeys) * depth;
    const int64_t count = std::clamp<int64_t>(keys - key, 0, kPanelKeys);
    if (count < kPanelKeys) std::fill_n(panel, kPanelKeys * depth, 0.0f);
    if (count == 0) continue;
    const FloatRows rows = rows_of(view, false, key, count, scratch);
    if (count == kPanelKeys) {
      pack_strip(rows.at, rows.stride, kPanelKeys, size, panel);
      continue;
    }
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t i = 0; i < size; ++i) {
        panel[i * kPanelKeys + row] = rows.at[row * rows.stride + i];
      }
    }
  }
}

void pack_value_tiles(const PromptView& view, int64_t first, int64_t end, float* scratch,
                      float* packed) {
  const int64_t size = view.head.head_size, width = value_width(size), keys = view.keys();
  for (int64_t tile = first; tile < end; ++tile) {
    float* target = packed + (tile - first) * kTileKeys * width;
    if (size < width || (tile + 1) * kTileKeys > keys) std::fill_n(target, kTileKeys * width, 0.0f);
    for (int64_t key = 0; key < kTileKeys; key += kPanelKeys) {
      const int64_t position = tile * kTileKeys + key;
      const int64_t count = std::clamp<int64_t>(keys - position, 0, kPanelKeys);
      if (count == 0) break;
      const FloatRows rows = rows_of(view, true, position, count, scratch);
      for (int64_t row = 0; row < count; ++row) {
        float* to = target + (key + row) * 16;
        for (int64_t i = 0; i < size; i += 16) {
          std::copy_n(rows.at + row * rows.stride + i, std::min<int64_t>(16, size - i),
                      to + i * kTileKeys);
        }
      }
    }
  }
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
