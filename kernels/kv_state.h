// State that a limited KV budget keeps for one sequence and layer beside its keys and values: for
// each KV head the scores of its slots, and the positions kept besides the recent ones. It is
// stored and transferred in front of the keys and values.
//
// While a prompt is computed in chunks, the scores of all its positions lie behind that, a run of
// float32 numbers for each KV head; after the prompt's last chunk nothing reads them again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/checked_math.h"
#include "kernels/base/kv_budget.h"

namespace spillway {

// State of one KV head. base/kv_budget.h defines the slots.
struct KvHeadState {
  float* scores = nullptr;       // [slots], or null when the budget stores none; in the slots of
                                 // its first positions infinity
  int32_t* positions = nullptr;  // [kept]
  int32_t* moved = nullptr;      // The slot into which the last decode step moved a row, or -1
};

struct KvStateLayout {
  int64_t heads = 0;  // KV heads
  KvBudget budget;

  int64_t scores() const { return budget.scored() ? budget.ring() + budget.kept : 0; }
  size_t head_bytes() const {
    if (!budget.has_state()) return 0;
    return round_up(static_cast<uint64_t>(scores() + budget.kept + 1) * 4, 64);
  }
  size_t bytes() const { return head_bytes() * static_cast<size_t>(heads); }

  // Scores of one KV head's positions during a prompt in chunks: whole tiles of 64 keys.
  int64_t prompt_scores(int64_t prompt) const {
    return budget.scored() ? static_cast<int64_t>(round_up(static_cast<uint64_t>(prompt), 64)) : 0;
  }
  // Bytes at the state's largest: during a prompt in chunks. The first bytes() of them stay.
  size_t chunked_bytes(int64_t prompt) const {
    return bytes() + static_cast<size_t>(prompt_scores(prompt) * heads) * sizeof(float);
  }
  // A KV head's scores during a prompt in chunks; null when the budget stores none.
  float* prompt_scores_at(std::byte* state, int64_t head, int64_t prompt) const {
    if (!budget.scored()) return nullptr;
    return reinterpret_cast<float*>(state + bytes()) + head * prompt_scores(prompt);
  }

  // All null when the budget has no state.
  KvHeadState head(std::byte* state, int64_t head) const {
    if (!budget.has_state()) return {};
    auto* scores_at = reinterpret_cast<float*>(state + static_cast<size_t>(head) * head_bytes());
    auto* positions = reinterpret_cast<int32_t*>(scores_at + scores());
    return {budget.scored() ? scores_at : nullptr, positions, positions + budget.kept};
  }
};

}  // namespace spillway
