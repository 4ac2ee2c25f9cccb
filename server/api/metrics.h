// The Prometheus text of GET /metrics: the scheduler's counters, the plan's bytes by tier, the
// kernel's statistics of the process. Nothing is sampled or kept here: every scrape reads the
// current numbers. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/scheduler.h"
#include "server/process_stats.h"

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

// Prometheus text format 0.0.4. Names and meanings of `vllm:...` are vLLM's, so that its dashboards
// work. `healthy`: there is no engine_trouble(). Without `process` its families are left out.
std::string metrics_text(std::string_view model_name, const SchedulerStats& stats, bool healthy,
                         const PlanFigures& plan, const std::optional<ProcessStats>& process);

}  // namespace spillway
