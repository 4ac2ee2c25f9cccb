// Which decode steps of a sweep have drafts behind them (drafter.h), and how long these are: what
// is counted of them. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace spillway {

// Gives the steps of the next sweep drafts as long as it has no more than `rows_max` rows, in even
// shares. A sweep of more rows has none.
void draft_sweep(std::span<const std::unique_ptr<Sequence>> running, int64_t rows_max);

// Counts a sequence's draft after a sweep, before its end_sweep().
void count_draft(const Sequence& sequence, DraftCounts* counts);

}  // namespace spillway
