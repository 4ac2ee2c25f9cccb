// The sequence of sweeps for a run of known requests, as scheduler/block_scheduler.cc forms them:
// prompts are admitted in order (batching.h) and run beside the sequences that already decode. Pure
// arithmetic, any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/batching.h"
#include "policy/kv_rule.h"
#include "policy/sweep_work.h"

namespace spillway {

// `count` requests of equal lengths. A workload of many lengths is several of these.
struct RequestGroup {
  int64_t prompt_tokens = 0, new_tokens = 0;  // Both at least 1
  int64_t count = 1;     // 0 in a request for a plan: as many as its block and its cache hold
  KvRuleChoice kv = {};  // Overrides the plan's rule
  // Of a prompt, the first tokens that an earlier request has computed, so that they are shared;
  // less than all.
  int64_t shared_tokens = 0;

  int64_t computed_tokens() const { return prompt_tokens - shared_tokens; }
};

// KV cache that a request reserves until it ends. The engine rounds it; the caller knows how.
struct KvReservation {
  uint64_t bytes = 0;
  int64_t rows_max = 0;  // Rows kept after a step, by layers without a sliding window
  // Layers with one: the positions that a query attends to, the rows kept, their share of all.
  int64_t window = 0;  // 0: there are none
  int64_t window_rows_max = 0;
  double window_share = 0;
  bool keeps_all_rows = false;  // No rule drops a row, and there is no window

  // Means over the layers: rows that are kept after `rows`, and that a step then attends to, its
  // own included.
  double kept(int64_t rows) const {
    return mean(std::min(rows, rows_max), std::min(rows, window_rows_max));
  }
  double attended(int64_t rows) const {
    return mean(std::min(rows, rows_max) + 1, std::min(rows, window_rows_max) + 1);
  }
  double mean(int64_t full, int64_t windowed) const {
    return (1 - window_share) * static_cast<double>(full) +
           window_share * static_cast<double>(windowed);
  }
};

// Consecutive sweeps, equal except that `work.cached_rows` grows by `cached_rows_step` each.
struct PlannedSweeps {
  int64_t count = 1;  // 1 where prompts are admitted
  SweepWork work;     // The first sweep's rows; planned_work() fills in bytes and logits
  double cached_rows_step = 0;

  // The mean over the sweeps.
  double mean_cached_rows() const {
    return work.cached_rows + cached_rows_step * static_cast<double>(count - 1) / 2;
  }
};

// The sweeps in order, until all sequences have finished. `reservations` goes with `groups`.
// REQUIRES: every reservation fits limits.kv_bytes alone.
std::vector<PlannedSweeps> plan_sweeps(std::span<const RequestGroup> groups,
                                       std::span<const KvReservation> reservations,
                                       const SweepLimits& limits);

}  // namespace spillway
