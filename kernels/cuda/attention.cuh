// Arguments and helpers of the attention kernels: one head's view of the cache, as
// kernels/kv_layout.h and kernels/kv_state.h lay it out.
#pragma once

#include "kernels/base/format.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/q4.cuh"
#include "kernels/kv_layout.h"
#include "kernels/kv_state.h"

namespace spillway::cuda {

// An AttentionItem in device memory.
struct ItemOnDevice {
  int64_t first_row, tokens, position;
  std::byte* kv;
  std::byte* state;
  int64_t recent, kept;
  bool scored;
  int64_t rows;  // Rows that a decode step attends to
  int64_t slot;  // Slot of its own row
  // Its prompt's sums of softmax weights by KV head, in scratch: [kv_heads][tokens], or null.
  float* sums;

  __device__ bool full() const { return recent == 0; }
  __device__ int64_t ring() const { return recent + 1; }
};

// Bytes of parameters that a kernel of any device takes.
constexpr size_t kParameterBytesMax = 4096;

// Most items that are passed as kernel parameters, without a copy that the kernels before and after
// it would wait for. (Uploading the items of all layers at once is not possible: the addresses of
// the caches are known layer by layer.) With more items a layer takes so long that the copy matters
// little.
constexpr int64_t kFewItems = 40;

// Arguments of a call: what all its items share, and the items.
struct AttentionOnDevice {
  const float* qkv;  // [T, (heads + 2 kv_heads) * head_size]
  int64_t qkv_stride;
  std::byte* out;  // [T, heads * head_size]
  int64_t out_stride;
  DType out_dtype;
  Format kv_format;
  int64_t heads, kv_heads, head_size;
  int64_t row_bytes, run_bytes, block_bytes;  // Strides of the cache
  float scale;
  float* statistics;          // [T][heads][2]: each prompt row's maximum and sum
  const ItemOnDevice* items;  // Null: they are `few`.
  ItemOnDevice few[kFewItems];

  // Skips the first `count` items.
  void skip_items(int64_t count) {
    if (items != nullptr) {
      items += count;
    } else {
      for (int64_t i = count; i < kFewItems; ++i) few[i - count] = few[i];
    }
  }

  __device__ ItemOnDevice item(unsigned index) const {
    return items == nullptr ? few[index] : items[index];
  }
  __device__ int64_t group() const { return heads / kv_heads; }
  __device__ const float* query(int64_t row, int64_t head) const {
    return qkv + row * qkv_stride + head * head_size;
  }
  __device__ const float* key(int64_t row, int64_t kv_head) const {
    return qkv + row * qkv_stride + (heads + kv_head) * head_size;
  }
  __device__ const float* value(int64_t row, int64_t kv_head) const {
    return key(row, kv_head) + kv_heads * head_size;
  }
  __device__ std::byte* key_slot(const ItemOnDevice& item, int64_t kv_head, int64_t slot) const {
    return item.kv + slot / kKvBlockRows * block_bytes + kv_head * run_bytes +
           slot % kKvBlockRows * row_bytes;
  }
  __device__ std::byte* value_slot(const ItemOnDevice& item, int64_t kv_head, int64_t slot) const {
    return key_slot(item, kv_head, slot) + kv_heads * run_bytes;
  }
  __device__ void store_out(int64_t row, int64_t head, int64_t column, float x) const {
    const int64_t at = row * out_stride + head * head_size + column;
    if (out_dtype == DType::kF32) reinterpret_cast<float*>(out)[at] = x;
    if (out_dtype == DType::kF16) reinterpret_cast<__half*>(out)[at] = narrow<__half>(x);
    if (out_dtype == DType::kBF16) {
      reinterpret_cast<__nv_bfloat16*>(out)[at] = narrow<__nv_bfloat16>(x);
    }
  }
};

static_assert(sizeof(AttentionOnDevice) <= kParameterBytesMax);

// KvStateLayout::head on the device.
struct HeadStateOnDevice {
  float* scores;
  int32_t* positions;
  int32_t* moved;
};
__device__ inline HeadStateOnDevice head_state(const ItemOnDevice& item, int64_t kv_head) {
  if (item.kept == 0) return {nullptr, nullptr, nullptr};
  const int64_t scores = item.scored ? item.ring() + item.kept : 0;
  const int64_t bytes = ((scores + item.kept + 1) * 4 + 63) / 64 * 64;
  auto* at = reinterpret_cast<float*>(item.state + kv_head * bytes);
  auto* positions = reinterpret_cast<int32_t*>(at + scores);
  return {item.scored ? at : nullptr, positions, positions + item.kept};
}

// Number `i` of a cached row, as float32.
__device__ inline float cached(const AttentionOnDevice& a, const std::byte* row, int64_t i) {
  if (a.kv_format == Format::kF32) return reinterpret_cast<const float*>(row)[i];
  if (a.kv_format == Format::kF16) return widen(reinterpret_cast<const __half*>(row)[i]);
  if (a.kv_format == Format::kBF16) return widen(reinterpret_cast<const __nv_bfloat16*>(row)[i]);
  return q4_row_value(row, i, a.head_size);
}

// Stores numbers [i, i + 4) of a row in a plain format of the cache. REQUIRES:
// head_size and i are multiples of 4.
__device__ inline void store_four(const AttentionOnDevice& a, const float* from, std::byte* row,
                                  int64_t i) {
  const float4 four = *reinterpret_cast<const float4*>(from + i);
  if (a.kv_format == Format::kF32) *reinterpret_cast<float4*>(row + i * 4) = four;
  if (a.kv_format == Format::kF16) {
    auto* to = reinterpret_cast<__half2*>(row + i * 2);
    to[0] = __floats2half2_rn(four.x, four.y), to[1] = __floats2half2_rn(four.z, four.w);
  }
  if (a.kv_format == Format::kBF16) {
    auto* to = reinterpret_cast<__nv_bfloat162*>(row + i * 2);
    to[0] = __floats2bfloat162_rn(four.x, four.y), to[1] = __floats2bfloat162_rn(four.z, four.w);
  }
}

// Stores a row of float32 numbers into the cache. All lanes of a warp call it, each for a part.
__device__ inline void store_cached(const AttentionOnDevice& a, const float* from, std::byte* row) {
  const int64_t lane = threadIdx.x % kWarp;
  if (a.kv_format == Format::kQ4) return store_q4_row(from, a.head_size, row);
  if (a.head_size % 4 == 0) {
    for (int64_t i = lane * 4; i < a.head_size; i += kWarp * 4) store_four(a, from, row, i);
    return;
  }
  for (int64_t i = lane; i < a.head_size; i += kWarp) {
    if (a.kv_format == Format::kF32) reinterpret_cast<float*>(row)[i] = from[i];
    if (a.kv_format == Format::kF16) reinterpret_cast<__half*>(row)[i] = narrow<__half>(from[i]);
    if (a.kv_format == Format::kBF16) {
      reinterpret_cast<__nv_bfloat16*>(row)[i] = narrow<__nv_bfloat16>(from[i]);
    }
  }
}

}  // namespace spillway::cuda
