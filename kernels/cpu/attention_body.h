// The inner loops of attention for one head of one sequence (attention.cc, attention_prompt.cc,
// attention_decode.cc).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"
#include "kernels/kv_layout.h"
#include "kernels/kv_state.h"

namespace spillway::cpu {

// One head of one AttentionItem, as addresses.
struct HeadView {
  const float* q = nullptr;  // Row i is at q + i * stride; k and v likewise.
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t stride = 0;
  int64_t tokens = 0;
  int64_t rows = 0;  // Decode step: slots to attend to, from the first
  int64_t head_size = 0;
  float scale = 1.0f;
  Format kv_format = Format::kF32;
  size_t kv_row_bytes = 0;
  std::byte* keys = nullptr;  // This head's run in block 0; block b is b * block_bytes further.
  std::byte* values = nullptr;
  size_t block_bytes = 0;
  std::byte* out = nullptr;
  DType out_dtype = DType::kF32;
  int64_t out_stride = 0;
  // Null, or where each row's softmax weights are added: [rows] in a decode step, [tokens rounded
  // up to 64] in a prompt.
  float* scores = nullptr;

  std::byte* key_at(int64_t slot) const { return keys + offset_of(slot); }
  std::byte* value_at(int64_t slot) const { return values + offset_of(slot); }

 private:
  size_t offset_of(int64_t slot) const {
    return static_cast<size_t>(slot / kKvBlockRows) * block_bytes +
           static_cast<size_t>(slot % kKvBlockRows) * kv_row_bytes;
  }
};

// Most query heads that one thread processes together in a decode step.
constexpr size_t kStepHeadsMax = 32;

// A decode step of one item's neighbouring query heads and of the KV heads that they share; the KV
// heads are contiguous in every block, so that memory is read in long runs.
struct StepView {
  const HeadView* heads = nullptr;
  size_t count = 0;      // At most kStepHeadsMax
  int64_t kv_heads = 0;  // Neighbouring, too
  bool more = false;     // As many KV heads follow, which the same thread likely takes next.
};

// Stores the keys and values of `count` of the item's tokens into slots from `slot` on.
void store_rows(const HeadView& view, int64_t token, int64_t count, int64_t slot);

// Stores the rows of a prompt that a limited budget keeps, and sets up `state`. view.scores: the
// scores of all its positions, or null when the budget is not by score. scratch:
// prompt_scratch_bytes().
void keep_prompt(const HeadView& view, const KvBudget& budget, const KvHeadState& state,
                 float* scratch);

// Called after a decode step at `position`: keeps the position that has left the recent window, in
// place of another when no slot is free, or drops it.
void keep_step(const HeadView& view, const KvBudget& budget, int64_t position,
               const KvHeadState& state);

// Scratch bytes of attend_prompt(), with scores or without, and of attend_step() for `heads` query
// heads.
size_t prompt_scratch_bytes(const HeadView& view, bool scored);
size_t step_scratch_bytes(const HeadView& view, int64_t heads);

// Attention of a whole prompt: tiles of 96 queries by 64 keys, one pass with a running maximum and
// sum (FlashAttention, Dao et al. 2022, algorithm 1, on the CPU's panel kernels). For scores the
// tiles of one query tile are kept until its sums are known, then added up: one multiply-add per
// score, where a second pass would compute the products and exponentials again.
void attend_prompt(const HeadView& view, float* scratch);

// Attention of one query per head over the cached rows, in three passes: scores, softmax, weighted
// sum. A head's bits do not depend on the heads beside it.
void attend_step(const StepView& step, float* scratch);

}  // namespace spillway::cpu
