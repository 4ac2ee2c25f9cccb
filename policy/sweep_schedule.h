// The sweeps that a run of known requests takes, as scheduler/block_scheduler.cc forms them:
// prompts are admitted in order while the block, the KV cache and a sweep's prompt tokens have
// room, and run beside the sequences that already decode. Pure arithmetic, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/kv_rule.h"

namespace spillway {

// `count` requests alike. A workload of many lengths is several of these.
struct RequestGroup {
  int64_t prompt_tokens = 0, new_tokens = 0;  // Both at least 1
  int64_t count = 1;     // 0, where a plan is asked for: as many as its block and its cache hold
  KvRuleChoice kv = {};  // Over the plan's rule
};

struct SweepLimits {
  int64_t block_sequences = 1;
  int64_t prefill_tokens = 2048;  // Prompt tokens of one sweep; one longer prompt goes alone
  uint64_t kv_bytes = 0;          // Of all tiers; what running sequences reserve
};

// Cache that a request reserves until it ends. The engine rounds; the caller knows how.
struct KvReservation {
  uint64_t bytes = 0;
  int64_t rows_max = 0;  // Rows kept after a step
};

// Sweeps that are alike but for `cached_rows`, which grows by `cached_rows_step` each.
struct PlannedSweeps {
  int64_t count = 1;
  int64_t decoding = 0;    // Sequences that gain a token
  double cached_rows = 0;  // Rows they attend to, summed, in the first of these sweeps
  double cached_rows_step = 0;
  int64_t prompts = 0;  // Admitted in each (then count is 1)
  int64_t prompt_tokens = 0;
  int64_t prompt_rows = 0;   // Kept of these tokens under the KV rule: what leaves the device
  int64_t prompt_pairs = 0;  // Sum over the prompts of s (s + 1) / 2

  // The mean of a sweep's.
  double mean_cached_rows() const {
    return cached_rows + cached_rows_step * static_cast<double>(count - 1) / 2;
  }
};

// In order, all sequences finished. `reservations` goes with `groups`. REQUIRES: every reservation
// fits limits.kv_bytes alone.
std::vector<PlannedSweeps> plan_sweeps(std::span<const RequestGroup> groups,
                                       std::span<const KvReservation> reservations,
                                       const SweepLimits& limits);

}  // namespace spillway
