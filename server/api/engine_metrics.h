// The metrics of the engine's work: what waits and runs by class, where the time of sweeps went,
// what went over the links, and how near that comes to the plan's prediction and to the bound.
// Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"
#include "server/api/metric_families.h"

namespace spillway {

// Bytes of a kind on a tier, with the metric's label values.
struct TierAmount {
  std::string tier;  // device, host or disk
  std::string kind;  // weights, kv, activations or staging
  uint64_t bytes = 0;
};

// The figures of a plan that do not change while it runs.
struct PlanFigures {
  std::vector<TierAmount> tier_bytes;
  std::optional<double> predicted_tokens_per_second;  // Empty: no prediction
};

// Adds them. `healthy`: there is no engine_trouble(). What nobody knows is left out.
void add_engine_metrics(const SchedulerStats& stats, bool healthy, const PlanFigures& plan,
                        MetricFamilies* to);

}  // namespace spillway
