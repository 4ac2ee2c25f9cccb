#include "kernels/cpu/attention_pack.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"

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
HWY_INLINE void expand_row_of(Format format, const std::byte* HWY_RESTRICT row, size_t size,
                              float* HWY_RESTRICT to) {
  if (is_quantized(format)) return expand_quantized_row(format, row, size, to);
  if (format == Format::kBF16) {
    widen_row(reinterpret_cast<const hwy::bfloat16_t*>(row), size, bf16_to_f32, to);
  } else {
    SPILLWAY_CHECK(format == Format::kF16);
    widen_row(reinterpret_cast<const hwy::float16_t*>(row), size, f16_to_f32, to);
  }
}

HWY_INLINE void store_kv_row(Format format, const float* HWY_RESTRICT from, size_t size,
                             std::byte* to) {
  if (is_quantized(format)) {
    store_quantized_row(format, from, size, to);
  } else {
    store_row(element_of(format), from, size, to);
  }
}

void StoreRows(const HeadView& view, int64_t token, int64_t count, int64_t slot) {
  const auto size = static_cast<size_t>(view.head_size);
  // A head's part of a row is a few cache lines, and the next row's is pages away: no hardware
  // prefetcher finds it. Further ahead they would push each other out: with rows of a multiple of
  // 4 KiB, all fall into one set of the first-level cache.
  constexpr int64_t kAhead = 4;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = (token + i) * view.stride, ahead = from + kAhead * view.stride;
    for (int64_t j = 0; j < view.head_size && i + kAhead < count; j += 16) {
      __builtin_prefetch(view.k + ahead + j);
      __builtin_prefetch(view.v + ahead + j);
    }
    store_kv_row(view.kv_format, view.k + from, size, view.key_at(slot + i));
    store_kv_row(view.kv_format, view.v + from, size, view.value_at(slot + i));
  }
}

void StoreToken(const HeadView& view, int64_t kv_heads, int64_t slot) {
  const auto size = static_cast<size_t>(view.head_size);
  const size_t run_bytes = kKvBlockRows * view.kv_row_bytes;
  std::byte *key = view.key_at(slot), *value = view.value_at(slot);
  for (size_t head = 0; head < static_cast<size_t>(kv_heads); ++head) {
    store_kv_row(view.kv_format, view.k + head * size, size, key + head * run_bytes);
    store_kv_row(view.kv_format, view.v + head * size, size, value + head * run_bytes);
  }
}

void RoundRow(Format format, const float* from, size_t size, std::byte* to) {
  store_kv_row(format, from, size, to);
}

// Copies a row into its lines.
HWY_INLINE void copy_to_lines(const float* HWY_RESTRICT row, size_t depth, float* HWY_RESTRICT to) {
  const hn::CappedTag<float, kTileLine> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < depth; i += kTileLine) {
    for (size_t j = 0; j < kTileLine; j += lanes) {
      hn::StoreU(hn::LoadU(d, row + i + j), d, to + i * kTileKeys + j);
    }
  }
}

// A cached row of 8-bit codes and whole lines, without a stop in between.
HWY_INLINE void expand_q8_to_lines(const std::byte* HWY_RESTRICT row, size_t size,
                                   float* HWY_RESTRICT to) {
  const hn::CappedTag<float, kTileLine> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  float scale;
  std::memcpy(&scale, row, sizeof(scale));
  const auto all = hn::Set(d, scale);
  const auto* const codes = reinterpret_cast<const int8_t*>(row + sizeof(scale));
  for (size_t i = 0; i < size; i += kTileLine) {
    for (size_t j = 0; j < kTileLine; j += lanes) {
      const auto some = hn::PromoteTo(di, hn::LoadU(d8, codes + i + j));
      hn::StoreU(hn::Mul(hn::ConvertTo(d, some), all), d, to + i * kTileKeys + j);
    }
  }
}

// Packs `count` rows: those of a cache, of `format`, `stride` bytes apart; or float32 rows that it
// does not hold yet, `stride` floats apart, as it would give them back.
void PackRows(Format format, const std::byte* cached, const float* rows, int64_t stride,
              int64_t count, size_t size, float* scratch, float* to) {
  const auto depth = static_cast<size_t>(key_depth(static_cast<int64_t>(size)));
  auto* const stored = reinterpret_cast<std::byte*>(scratch + depth);
  std::fill(scratch + size, scratch + depth, 0.0f);
  if (cached != nullptr && format == Format::kQ8 && size == depth) {
    for (int64_t i = 0; i < count; ++i) {
      expand_q8_to_lines(cached + i * stride, size, to + i * kTileLine);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float* row = nullptr;
    if (format == Format::kF32) {
      row = cached == nullptr ? rows + i * stride
                              : reinterpret_cast<const float*>(cached + i * stride);
      if (size < depth) {
        std::copy_n(row, size, scratch);
        row = scratch;
      }
    } else {
      if (cached == nullptr) store_kv_row(format, rows + i * stride, size, stored);
      expand_row_of(format, cached == nullptr ? stored : cached + i * stride, size, scratch);
      row = scratch;
    }
    copy_to_lines(row, depth, to + i * kTileLine);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {

HWY_EXPORT(StoreRows);
HWY_EXPORT(StoreToken);
HWY_EXPORT(PackRows);
HWY_EXPORT(RoundRow);

void store_rows(const HeadView& view, int64_t token, int64_t count, int64_t slot) {
  HWY_DYNAMIC_DISPATCH(StoreRows)(view, token, count, slot);
}

void store_token(const HeadView& view, int64_t kv_heads, int64_t slot) {
  HWY_DYNAMIC_DISPATCH(StoreToken)(view, kv_heads, slot);
}

const std::byte* cache_row(const PromptView& view, bool value, int64_t key, std::byte* memory) {
  if (key < view.cached) return view.cached_row(value, view.slot_of(key));
  HWY_DYNAMIC_DISPATCH(RoundRow)
  (view.head.kv_format, view.new_row(value, key), static_cast<size_t>(view.head.head_size), memory);
  return memory;
}

void pack_tiles(const PromptView& view, bool values, int64_t first, int64_t end, float* scratch,
                float* packed) {
  const HeadView& head = view.head;
  const int64_t depth = key_depth(head.head_size), keys = view.keys();
  for (int64_t key = first * kTileKeys; key < end * kTileKeys; key += kKvBlockRows) {
    const int64_t tile = key / kTileKeys;
    float* const to = packed + (tile - first) * kTileKeys * depth + key % kTileKeys * kTileLine;
    const int64_t count = std::clamp<int64_t>(keys - key, 0, kKvBlockRows);
    for (int64_t i = 0; i < depth && count < kKvBlockRows; i += kTileLine) {
      std::fill_n(to + i * kTileKeys + count * kTileLine, (kKvBlockRows - count) * kTileLine, 0.0f);
    }
    if (count == 0) continue;
    // These lie in one block, in a ring as well.
    const bool cached = key < view.cached;
    HWY_DYNAMIC_DISPATCH(PackRows)
    (head.kv_format, cached ? view.cached_row(values, view.slot_of(key)) : nullptr,
     cached ? nullptr : view.new_row(values, key),
     cached ? static_cast<int64_t>(head.kv_row_bytes) : head.stride, count,
     static_cast<size_t>(head.head_size), scratch, to);
  }
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
