#include "scheduler/sweep_count.h"

#include <algorithm>
#include <cmath>

namespace spillway {

namespace {

// Of work. Sweeps that are longer make the recent pace that of the last one or two.
constexpr double kRecentSeconds = 60;

SweepStats stats_of(const LoggedSweep& sweep) {
  return {sweep.ended,
          sweep.seconds,
          sweep.decoding - sweep.drafted,
          sweep.prompt_tokens,
          sweep.weights_wait_seconds,
          sweep.kv_wait_seconds,
          sweep.activations_wait_seconds,
          sweep.staging_wait_seconds};
}

void add(const LoggedSweep& sweep, SweepSeconds* to) {
  to->compute += std::max(0.0, sweep.seconds - sweep.waiting_seconds());
  to->weights += sweep.weights_wait_seconds;
  to->kv += sweep.kv_wait_seconds;
  to->activations += sweep.activations_wait_seconds;
  to->staging += sweep.staging_wait_seconds;
}

}  // namespace

void count(const SweepCount& sweep, SchedulerStats* stats) {
  const double seconds = sweep.ended - sweep.began;
  ++stats->sweeps;
  stats->busy_seconds += seconds;
  stats->prompt_tokens += sweep.prompt_tokens;
  stats->generated_tokens += sweep.generated_tokens;
  stats->links = sweep.links;
  const double keeps = std::exp(-seconds / kRecentSeconds);
  stats->recent_tokens = keeps * stats->recent_tokens + static_cast<double>(sweep.generated_tokens);
  stats->recent_seconds = keeps * stats->recent_seconds + seconds;
  stats->recent_bound_seconds =
      keeps * stats->recent_bound_seconds + sweep.bound_seconds.value_or(0);
  if (sweep.sweep == nullptr) {
    ++stats->sweeps_failed;
    ++stats->failures_in_a_row;
    stats->seconds.other += seconds;
    stats->last_sweep = {};
    return;
  }
  stats->failures_in_a_row = 0;
  add(*sweep.sweep, &stats->seconds);
  stats->seconds.other += std::max(0.0, seconds - sweep.sweep->seconds);
  stats->last_sweep = stats_of(*sweep.sweep);
  if (sweep.bound_seconds) {
    stats->bound_seconds = stats->bound_seconds.value_or(0) + *sweep.bound_seconds;
  }
}

}  // namespace spillway
