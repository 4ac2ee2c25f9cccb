// What a scheduler counts of its sweeps for the statistics. Plain values; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "policy/prefill_target.h"
#include "policy/sweep_work.h"
#include "scheduler/engine/sweep_account.h"
#include "scheduler/scheduler.h"

namespace spillway {

// The least seconds that a sweep's work needs on this machine (policy/bound.h). Empty: nobody
// knows.
using SweepBound = std::function<double(const SweepWork&)>;

// A sweep that has ended.
struct SweepCount {
  const LoggedSweep* sweep = nullptr;  // Null: it failed
  double began = 0, ended = 0;         // steady_seconds(), with what was done around the engine
  uint64_t prompt_tokens = 0, generated_tokens = 0;
  std::optional<double> bound_seconds;
  LinkTable links;
};

// Adds it to the statistics, with its failure, if it failed.
void count(const SweepCount& sweep, SchedulerStats* stats);

// What the target of prompt tokens is corrected by.
inline MeasuredSweep measured(const LoggedSweep& sweep, bool limited_by_target) {
  return {.decoding = sweep.decoding,
          .prompt_tokens = sweep.prompt_tokens,
          .seconds = sweep.seconds,
          .waiting_seconds = sweep.waiting_seconds(),
          .limited_by_target = limited_by_target};
}

}  // namespace spillway
