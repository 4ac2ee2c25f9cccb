// The inner loops of attention for one head of one sequence (attention.cc, attention_prompt.cc,
// attention_decode.cc).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"
#include "kernels/base/kv_random.h"
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
  KvBlocks kv;
  size_t block_bytes = 0;
  size_t keys_at = 0, values_at = 0;  // This head's runs in every block
  std::byte* out = nullptr;
  DType out_dtype = DType::kF32;
  int64_t out_stride = 0;
  // Of a prompt: null, or where each row's softmax weights are added, [keys rounded up to 64].
  float* scores = nullptr;
  KvDraw draw;  // Of a budget that chooses at random

  std::byte* key_at(int64_t slot) const { return row_in(kv, slot) + keys_at; }
  std::byte* value_at(int64_t slot) const { return row_in(kv, slot) + values_at; }
  // The row of all heads in a slot of any blocks that are laid out as the cache
  std::byte* row_in(const KvBlocks& blocks, int64_t slot) const {
    return blocks.block(slot / kKvBlockRows, block_bytes) +
           static_cast<size_t>(slot % kKvBlockRows) * kv_row_bytes;
  }
};

// What both products of a prompt's attention are made of: float32 (attention_tile.h); pairs of bf16
// on vectors (attention_bf16.h: queries and softmax weights are rounded, keys and values are as the
// cache, in bf16, has them); 16-bit integers on vectors (attention_int16.h), of a cache in 8 bits;
// or matrix units (attention_amx.h).
enum class PromptProducts : uint8_t { kFloat, kBf16Pairs, kInt16, kTiles };

// The parts of bf16 that a factor of a product by matrix units has (attention_amx.h): one or two,
// and no more of keys and values than of queries and softmax weights.
struct FactorParts {
  int rows = 1;    // Of queries and softmax weights
  int cached = 1;  // Of keys and values
};

// Prompt rows of one item, for one KV head and the query heads that share it: query row r is that
// of token r / group and of head r % group of these.
struct PromptView {
  HeadView head;  // The first query head, and the KV head
  int64_t group = 1;
  int64_t position = 0;  // Of the first token
  int64_t window = 0;    // 0, or the positions up to its own that a query attends to
  // Keys and values of positions before `cached`: those of `source`, position p in slot p, or in a
  // ring of `chunk_ring` slots. The others are not there yet: those of head.k and head.v, rounded
  // to the cache's format. All are cached, or none, or those before `position`, which is a multiple
  // of kKvBlockRows then.
  KvBlocks source;
  int64_t cached = 0;
  // Rows of positions before it are in no score; and whether a score is the highest weight of its
  // rows instead of their sum.
  int64_t scored_from = 0;
  bool highest = false;
  int64_t chunk_ring = 0;  // KvBudget's
  PromptProducts products = PromptProducts::kFloat;
  FactorParts parts;  // With kTiles

  int64_t keys() const { return position + head.tokens; }
  int64_t rows() const { return head.tokens * group; }
  // Whether the rows lie in the sequence's own cache, where those that stay move to their slots.
  bool in_place() const { return cached == keys(); }
  // The slot of `source` that has a cached position
  int64_t slot_of(int64_t at) const { return chunk_ring == 0 ? at : at % chunk_ring; }
  // The key or the value in a slot of `source`, and that of a position that is not cached.
  const std::byte* cached_row(bool value, int64_t slot) const {
    return head.row_in(source, slot) + (value ? head.values_at : head.keys_at);
  }
  const float* new_row(bool value, int64_t at) const {
    return (value ? head.v : head.k) + (at - position) * head.stride;
  }
};

// Rows of a tile of scores, and which of its keys they see: those up to their own position, of
// these the last `window`, or all where it is 0. No member functions: these would be compiled for
// the instruction set of their first caller.
struct TileRows {
  const int32_t* positions = nullptr;
  int64_t first_key = 0;
  int64_t window = 0;
};

// Most query heads that one thread processes together in a decode step.
constexpr size_t kStepHeadsMax = 32;

// What is known of a part of a decode step's rows, of one head: its highest score, and the sum of
// e^(score - highest).
struct StepPart {
  float highest = 0, total = 0;
};

// A decode step of one item's neighbouring query heads and of the KV heads that they share; the KV
// heads are contiguous in every block, so that memory is read in long runs. The heads' queries and
// outputs lie one behind another; all else is the first one's.
struct StepView {
  HeadView first;        // The first query head, and its KV head
  size_t count = 0;      // Query heads, whose numbers follow one another: at most kStepHeadsMax
  int64_t kv_heads = 0;  // Neighbouring, too
  bool more = false;     // As many KV heads follow, which the same thread likely takes next.
  // Null, or [count]: the heads' rows are a part of all. Outputs, in float32, are the sums of
  // e^(score - highest) * value then, for join_part() (attention_parts.h).
  StepPart* parts = nullptr;
  // Null, or of each KV head null or where its rows' softmax weights are added, [rows].
  float* const* scores = nullptr;
};

// Stores the keys and values of `count` of the item's tokens into slots from `slot` on.
void store_rows(const HeadView& view, int64_t token, int64_t count, int64_t slot);

// Stores the key and the value of the item's first token into a slot: those of the view's KV head
// and of the next ones, `kv_heads` in all.
void store_token(const HeadView& view, int64_t kv_heads, int64_t slot);

// Keeps the rows of a prompt that a limited budget keeps, after its last row: those that lie in the
// cache move to their slots, others are stored there, or copied from the prompt's beginning. Sets
// up `state`.
// view.head.scores: the scores of all its positions, or null when the budget stores none.
// scratch: keep_scratch_bytes(budget, head size).
void keep_prompt(const PromptView& view, const KvBudget& budget, const KvHeadState& state,
                 std::byte* scratch);
size_t keep_scratch_bytes(const KvBudget& budget, size_t row_bytes);

// Called after a decode step at `position`: keeps the position that has left the recent window, in
// place of another when no slot is free, or drops it.
void keep_step(const HeadView& view, const KvBudget& budget, int64_t position,
               const KvHeadState& state);

// Scratch bytes of attend_prompt() over so many keys, with scores or without: beyond
// prompt_keys_at_once() they do not grow with the keys. With scores, they are most at that number.
size_t prompt_scratch_bytes(int64_t head_size, int64_t keys, bool scored);
int64_t prompt_keys_at_once(int64_t head_size);

// Scratch bytes of attend_step() for `heads` query heads, and how many of them the scratch of a
// thread has room for: as many as share a KV head, unless the rows are more than hundred thousand.
size_t step_scratch_bytes(const HeadView& view, int64_t heads);
int64_t step_heads_max(const HeadView& view);

// Query rows that attend_prompt() takes through the keys together: a share of a prompt's rows
// should be several of these, since each share packs all keys.
int64_t prompt_block_rows(int64_t head_size, int64_t keys);

// Attention of query rows [first_row, end_row) of a prompt: tiles of 96 query rows by 64 keys, the
// keys from position 0 on, with a running maximum and sum (FlashAttention, Dao et al. 2022,
// algorithm 1; attention_tile.h). A row's bits do not depend on the rows beside it.
//
// Keys and values are packed once for all heads of the group, and while there are more than
// prompt_keys_at_once() of them for as many query tiles as the scratch has room for. Weights are
// added to the scores row by row, so that a score does not depend on the cuts of a prompt: from the
// tiles of the only pass, which are kept until their rows' sums are known, one multiply-add each;
// where these are too many, from a second pass, which computes them again, bit by bit.
void attend_prompt(const PromptView& view, int64_t first_row, int64_t end_row, float* scratch);

// Attention of one query per head over the cached rows, in three passes: scores, softmax, weighted
// sum. Keys and values are read once for all heads that share them. A head's bits do not depend on
// the heads beside it.
void attend_step(const StepView& step, float* scratch);

}  // namespace spillway::cpu
