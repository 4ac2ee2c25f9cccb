#include "scheduler/sweep_drafts.h"

#include <algorithm>

namespace spillway {

void draft_sweep(std::span<const std::unique_ptr<Sequence>> running, int64_t rows_max) {
  int64_t rows = 0, steps = 0;
  for (const auto& sequence : running) {
    rows += static_cast<int64_t>(sequence->next_tokens().size());
    steps += sequence->prefilling() ? 0 : 1;
  }
  int64_t left = rows_max - rows;
  if (left <= 0 || steps == 0) return;
  const int64_t share = std::max<int64_t>(1, left / steps);
  for (const auto& sequence : running) {
    if (sequence->prefilling()) continue;
    sequence->draft(std::min(share, left));
    left -= sequence->drafted();
  }
}

void count_draft(const Sequence& sequence, DraftCounts* counts) {
  if (sequence.drafted() == 0) return;
  ++counts->drafts;
  counts->drafted += static_cast<uint64_t>(sequence.drafted());
  counts->accepted += static_cast<uint64_t>(sequence.accepted());
}

}  // namespace spillway
