// Arguments and helpers of the attention kernels: one head's view of the cache, as
// kernels/kv_layout.h and kernels/kv_state.h lay it out.
#pragma once

#include "kernels/base/format.h"
#include "kernels/base/kv_random.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/quant.cuh"
#include "kernels/kv_layout.h"
#include "kernels/kv_state.h"

namespace spillway::cuda {

// An AttentionItem in device memory.
struct ItemOnDevice {
  int64_t first_row;
  int32_t tokens, position;
  int32_t prompt;  // Tokens of the whole prompt; of a decode step 0
  int32_t recent, kept;
  int32_t first;  // KvBudget::first
  // Rows that a decode step attends to; of a chunk of a prompt KvBudget::chunk_ring, else 0
  int32_t rows;
  int32_t slot;                // Of a decode step's own row, or kStored; of a prompt behind a
                               // beginning kBehind
  bool scored, random, snaps;  // KvBudget's
  bool highest;                // A prompt's sums are the highest weights instead (kSnapMax)
  int32_t scored_from;         // KvBudget::scored_from()
  uint64_t draw_key;           // KvDraw::key_of(), where it is random
  // The cache; of a prompt behind a beginning the blocks of the beginning and behind them those of
  // scratch for its own rows, under a block table.
  KvBlocks kv;
  std::byte* state;
  // Rows of a prompt in one piece, laid out as the cache: of a whole prompt all rows, while they
  // are not in the cache; of the last chunk of one those that stay, on the way to their slots in
  // the cache. Null: of neither kind. Of a prompt behind a beginning the block table of its cache,
  // where the rows that stay go: set_kept_table().
  std::byte* scratch;
  float* sums;  // Sums (`highest`: maxima) of a prompt's softmax weights by KV head, sums_of()
                // apart; or null

  static constexpr int32_t kBehind = -1;  // No row's slot
  static constexpr int32_t kStored = -2;  // Of a decode step whose row is in the cache already

  void set_kept_table(std::byte* const* table) {
    scratch = reinterpret_cast<std::byte*>(const_cast<std::byte**>(table));
  }
  __device__ bool behind() const { return slot == kBehind; }
  __device__ bool full() const { return recent == 0; }
  __device__ bool by_score() const { return scored || random; }
  __device__ KvDraw draw(int64_t kv_head) const { return KvDraw(draw_key, kv_head); }
  __device__ int64_t ring() const { return recent + 1; }
  __device__ int64_t keys() const { return position + tokens; }
  __device__ bool whole() const { return position == 0 && tokens == prompt; }
  // Where a prompt's rows are read, position p in slot p or in a ring of `rows` slots.
  __device__ KvBlocks source() const {
    return whole() && scratch != nullptr ? KvBlocks(scratch) : kv;
  }
  // Where those that stay are put in their slots when it ends: not where they are read. From
  // scratch, keeps_in_scratch(), they then go into the same slots of the cache.
  __device__ bool keeps_in_scratch() const { return !whole() && !behind() && scratch != nullptr; }
  __device__ KvBlocks kept_in() const {
    if (behind()) return KvBlocks(reinterpret_cast<std::byte* const*>(scratch));
    return keeps_in_scratch() ? KvBlocks(scratch) : kv;
  }
  // The slot of `source` in which a prompt's row lies.
  __device__ int64_t source_slot(int64_t row_position) const {
    return rows == 0 ? row_position : row_position % rows;
  }
  __device__ float* sums_of(int64_t kv_head) const {
    return sums + kv_head * ((prompt + 63) / 64 * 64);
  }
};

// Bytes of parameters that a kernel of any device takes.
constexpr size_t kParameterBytesMax = 4096;

// Most items that are passed as kernel parameters, without a copy that the kernels before and after
// it would wait for. (Uploading the items of all layers at once is not possible: the addresses of
// the caches are known layer by layer.) With more items a layer takes so long that the copy matters
// little. Block tables are uploaded in any case.
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
  int64_t window;                             // 0: none
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
  // A prompt row's maximum and sum of one head.
  __device__ float* statistics_of(int64_t row, int64_t head) const {
    return statistics + (row * heads + head) * 2;
  }
  __device__ const float* key(int64_t row, int64_t kv_head) const {
    return qkv + row * qkv_stride + (heads + kv_head) * head_size;
  }
  __device__ const float* value(int64_t row, int64_t kv_head) const {
    return key(row, kv_head) + kv_heads * head_size;
  }
  // A key in memory that is laid out as the cache; its value is value_offset() further.
  __device__ std::byte* slot_in(const KvBlocks& blocks, int64_t kv_head, int64_t slot) const {
    return blocks.block(slot / kKvBlockRows, static_cast<size_t>(block_bytes)) +
           kv_head * run_bytes + slot % kKvBlockRows * row_bytes;
  }
  __device__ int64_t value_offset() const { return kv_heads * run_bytes; }
  __device__ std::byte* key_slot(const ItemOnDevice& item, int64_t kv_head, int64_t slot) const {
    return slot_in(item.kv, kv_head, slot);
  }
  __device__ std::byte* value_slot(const ItemOnDevice& item, int64_t kv_head, int64_t slot) const {
    return key_slot(item, kv_head, slot) + value_offset();
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
  if (a.kv_format == Format::kQ8) return q8_row_value(row, i);
  return q4_row_value(row, i, a.head_size);
}

// Numbers [i, i + 4) of a cached row. REQUIRES: head_size and i are multiples of 4.
__device__ inline void cached4(const AttentionOnDevice& a, const std::byte* row, int64_t i,
                               float to[4]) {
  if (a.kv_format == Format::kF32) {
    const float4 four = *reinterpret_cast<const float4*>(row + i * 4);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  } else if (a.kv_format == Format::kF16) {
    for (int j = 0; j < 4; ++j) to[j] = widen(reinterpret_cast<const __half*>(row + i * 2)[j]);
  } else if (a.kv_format == Format::kBF16) {
    for (int j = 0; j < 4; ++j) {
      to[j] = widen(reinterpret_cast<const __nv_bfloat16*>(row + i * 2)[j]);
    }
  } else if (a.kv_format == Format::kQ8) {
    for (int j = 0; j < 4; ++j) to[j] = q8_row_value(row, i + j);
  } else {
    for (int j = 0; j < 4; ++j) to[j] = q4_row_value(row, i + j, a.head_size);
  }
}

// A query row of a prompt's KV head: those of a token's heads follow one another, so that the heads
// that share keys and values read them together.
struct QueryRow {
  int64_t token, head, position;
};
__device__ inline QueryRow query_row(const AttentionOnDevice& a, const ItemOnDevice& item,
                                     int64_t kv_head, int64_t row) {
  const int64_t token = row / a.group();
  return {token, kv_head * a.group() + row % a.group(), item.position + token};
}

// The first key that a query at this position sees.
__device__ inline int64_t first_seen(const AttentionOnDevice& a, int64_t position) {
  return a.window == 0 || position < a.window ? 0 : position - a.window + 1;
}

// Query rows [first, end) of a KV head that may see keys [first_key, end_key).
struct RowRange {
  int64_t first, end;
};
__device__ inline RowRange rows_seeing(const AttentionOnDevice& a, const ItemOnDevice& item,
                                       int64_t first_key, int64_t end_key) {
  const int64_t first = first_key > item.position ? first_key - item.position : 0;
  int64_t end = item.tokens;
  if (a.window != 0 && end_key + a.window - 1 - item.position < end) {
    end = end_key + a.window - 1 - item.position;
  }
  return {first * a.group(), end * a.group()};
}

// Of these the ones that count in the scores.
__device__ inline RowRange scored_rows(const AttentionOnDevice& a, const ItemOnDevice& item,
                                       int64_t first_key, int64_t end_key) {
  RowRange rows = rows_seeing(a, item, first_key, end_key);
  const int64_t from = (item.scored_from - item.position) * a.group();
  if (from > rows.first) rows.first = from;
  return rows;
}

// Puts a weight to a key's sum, or to the highest so far.
__device__ inline float with_weight(const ItemOnDevice& item, float sum, float weight) {
  return item.highest ? fmaxf(sum, weight) : sum + weight;
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
  if (a.kv_format == Format::kQ8) return store_q8_row(from, a.head_size, row);
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
