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
  const float* q = nullptr;  // Row i at q + i * stride; so k and v.
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t stride = 0;
  int64_t tokens = 0;
  int64_t rows = 0;  // Of a decode step: slots to attend to, from the first
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
  // Null, or where each row's softmax weights are added: of a decode step [rows], of a prompt
  // [tokens rounded up to 64].
  float* scores = nullptr;

  std::byte* key_at(int64_t slot) const { return keys + offset_of(slot); }
  std::byte* value_at(int64_t slot) const { return values + offset_of(slot); }

 private:
  size_t offset_of(int64_t slot) const {
    return static_cast<size_t>(slot / kKvBlockRows) * block_bytes +
           static_cast<size_t>(slot % kKvBlockRows) * kv_row_bytes;
  }
};

// Query heads that one thread takes together in a decode step, at most.
constexpr size_t kStepHeadsMax = 32;

// A decode step of neighbouring query heads, all of the same item, and of the KV heads that they
// share: these lie one behind the other in every block, so that memory is read in long runs.
struct StepView {
  const HeadView* heads = nullptr;
  size_t count = 0;      // At most kStepHeadsMax
  int64_t kv_heads = 0;  // Neighbours, too
  bool more = false;  // As many KV heads lie behind these, which the same thread likely takes next.
};

// Stores the keys and values of `count` of the item's tokens into slots from `slot` on.
void store_rows(const HeadView& view, int64_t token, int64_t count, int64_t slot);

// Stores what a limited budget keeps of a prompt and sets up `state`. view.scores: those of all its
// positions, or null when the budget does not go by score. scratch: of prompt_scratch_bytes().
void keep_prompt(const HeadView& view, const KvBudget& budget, const KvHeadState& state,
                 float* scratch);

// After a decode step at `position`: the position that has left the recent window is kept, in place
// of another when there is no more room, or dropped.
void keep_step(const HeadView& view, const KvBudget& budget, int64_t position,
               const KvHeadState& state);

// Scratch for attend_prompt, with scores or without, or attend_step of so many query heads.
size_t prompt_scratch_bytes(const HeadView& view, bool scored);
size_t step_scratch_bytes(const HeadView& view, int64_t heads);

// A whole prompt: tiles of 96 queries by 64 keys, one pass with a running maximum and sum
// (FlashAttention, Dao et al. 2022, algorithm 1, on the CPU's panel kernels). For scores the tiles
// of one query tile are kept until its sums are known, then added up: one multiply-add a score,
// where a second pass would compute the products and exponentials again.
void attend_prompt(const HeadView& view, float* scratch);

// One query a head over the cached rows, in three passes: scores, softmax, weighted sum. A head's
// bits do not depend on those beside it.
void attend_step(const StepView& step, float* scratch);

}  // namespace spillway::cpu
