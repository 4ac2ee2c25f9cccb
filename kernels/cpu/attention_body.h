// The inner loops of attention for one head of one sequence (attention.cc, attention_prompt.cc,
// attention_decode.cc).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"

namespace spillway::cpu {

// One head of one AttentionItem, as addresses.
struct HeadView {
  const float* q = nullptr;  // Row i at q + i * stride; so k and v.
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t stride = 0;
  int64_t tokens = 0;
  int64_t position = 0;
  int64_t head_size = 0;
  float scale = 1.0f;
  DType kv_dtype = DType::kF32;
  size_t kv_row_bytes = 0;
  std::byte* keys = nullptr;  // This head's run in block 0; block b is b * block_bytes further.
  std::byte* values = nullptr;
  size_t block_bytes = 0;
  std::byte* out = nullptr;
  DType out_dtype = DType::kF32;
  int64_t out_stride = 0;
};

// Appends the item's keys and values to the cache, rows [position, position + tokens).
void store_keys_and_values(const HeadView& view);

// Scratch for attend_prompt (prompts) or attend_one.
size_t scratch_bytes(const HeadView& view);

// A whole prompt: tiles of 96 queries by 64 keys, one pass with a running maximum and sum
// (FlashAttention, Dao et al. 2022, algorithm 1, on the CPU's panel kernels).
void attend_prompt(const HeadView& view, float* scratch);

// One query over position + 1 cached rows, in three passes: scores, softmax, weighted sum.
void attend_one(const HeadView& view, float* scratch);

}  // namespace spillway::cpu
