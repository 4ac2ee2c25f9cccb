// SubBlock: the sequences that go through sweeps together. Where one process has all layers there
// is one, the block; where a model lies in pipeline stages there are as many as stages, which take
// turns, so that each stage has one to work on. Owned by the scheduler. Engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "scheduler/block.h"
#include "scheduler/engine/sweep.h"
#include "scheduler/stages/other_ranks.h"

namespace spillway {

struct SubBlock {
  SubBlock(KvRoom& room, WaitingQueue& waiting, const SweepLimits& limits,
           std::function<void()> retire)
      : block(room, waiting, limits, std::move(retire)) {
    items.reserve(static_cast<size_t>(limits.block_sequences));
  }

  // Puts the next tokens of its sequences into `items`.
  void fill_items() {
    items.clear();
    prompt_tokens = 0;
    for (const auto& sequence : block.running()) {
      const std::span<const int32_t> tokens = sequence->next_tokens();
      items.push_back({.tokens = tokens,
                       .position = sequence->next_position(),
                       .prompt = sequence->prefilling() ? sequence->prompt_tokens() : 0,
                       .kv = sequence->kv(),
                       .all_logits = sequence->wants_all_logits(),
                       .no_logits = !sequence->wants_all_logits() && !sequence->ends_prompt(),
                       .sample = sequence->sample_rule(),
                       .samples = sequence->sample_rules()});
      if (sequence->prefilling()) prompt_tokens += tokens.size();
    }
  }

  Block block;
  int64_t owed = 0;  // SweepContents::owed of its next sweep

  // Its sweep, or the last one.
  bool under_way = false;
  double began = 0;
  std::vector<SweepItem> items;
  uint64_t prompt_tokens = 0;
  bool limited_by_target = false;
  Status start;  // Whether it could be sent to the stages before this one
};

// A sub-block has a sequence at least.
inline int64_t sub_block_count(int64_t block, const OtherRanks* others) {
  return others == nullptr ? 1 : std::min(block, others->sweeps_at_once());
}

// Most sequences of one of the sub-blocks of a block.
inline int64_t sub_block_sequences(int64_t block, const OtherRanks* others) {
  return block / sub_block_count(block, others);
}

}  // namespace spillway
