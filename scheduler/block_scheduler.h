// The Scheduler over an Engine: continuous admission into one block of sequences. Each sweep gives
// every running sequence a token and prefills newly admitted prompts beside them, whole, or in
// chunks over several sweeps where a prompt is longer than a sweep's prompt tokens; a finished
// sequence gives back its KV memory before the next sweep is put together.
//
// Within a priority clients take turns, each first come, first served, those with nothing in the
// block first (waiting_queue.h): one that has its turn and does not fit holds back the others, so
// none starves, unless others give way to it (block.h). Others pass one that is held for a sweep or
// some because another sequence computes what it would share.
#pragma once

#include <cstdint>
#include <memory>

#include "scheduler/engine/engine.h"
#include "scheduler/scheduler.h"
#include "scheduler/stages/other_ranks.h"
#include "scheduler/sweep_count.h"

namespace spillway {

struct SchedulerOptions {
  int64_t block_sequences_max = 256;
  int64_t prefill_tokens_max = 2048;  // Prompt tokens per sweep; a longer prompt goes in chunks
  // Prompt tokens that sweeps take in the mean while requests wait (SweepLimits::prefill_target),
  // to begin with: measured sweeps correct it (policy/prefill_target.h). 0: as many as fit.
  int64_t prefill_target = 0;
  bool corrects_target = true;      // False, for tests: the target stays, whatever sweeps wait for.
  int64_t queue_max = 8192;         // Waiting requests
  int64_t sampling_vocabulary = 0;  // Only ids below it are generated; 0: all ids
  KvRule kv_rule;                   // Of requests that name no other rule
  // The most that cached beginnings of prompts take of the KV cache; 0: none is shared. Requests
  // that need the memory get it from those that nobody uses.
  uint64_t prefix_cache_bytes = 0;
  // Most tokens of a draft behind a decode step (drafter.h), for sequences that keep every row of
  // their cache; 0: there are none. The engine's draft_rows_max says in which sweeps.
  int64_t draft_tokens = 0;
  double gather_seconds = 0;  // Wait of an idle engine for more requests after the first
};

// Most tokens of one sweep with these options, for EngineOptions::sweep_tokens_max.
int64_t sweep_tokens_max(const ModelShape& shape, const SchedulerOptions& options);

// Starts the engine thread. `bound`: for the statistics. `others`: the ranks that hold the model
// with the engine's, if it has not all. REQUIRES: the engine was opened for sweep_tokens_max(), and
// with other ranks nothing is shared or set aside.
std::unique_ptr<Scheduler> start_scheduler(std::unique_ptr<Engine> engine,
                                           const SchedulerOptions& options, SweepBound bound = {},
                                           std::unique_ptr<OtherRanks> others = {});

}  // namespace spillway
