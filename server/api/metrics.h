// The Prometheus text of GET /metrics: what the scheduler counts, what the plan put where, what the
// kernel counts for the process. Nothing is sampled or kept here: every scrape reads the numbers as
// they are. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/scheduler.h"
#include "server/process_stats.h"

namespace spillway {

// Bytes of a kind on a tier, in the words of the metric's labels.
struct TierAmount {
  std::string tier;  // device, host or disk
  std::string kind;  // weights, kv, activations or staging
  uint64_t bytes = 0;
};

// What of a plan does not change while it is carried out.
struct PlanFigures {
  std::vector<TierAmount> tier_bytes;
  std::optional<double> predicted_tokens_per_second;  // None: nothing was predicted
};

// Prometheus text format 0.0.4. Names and meanings of `vllm:...` are vLLM's, so that its dashboards
// work. `healthy`: there is no engine_trouble(). Without `process` its families are left out.
std::string metrics_text(std::string_view model_name, const SchedulerStats& stats, bool healthy,
                         const PlanFigures& plan, const std::optional<ProcessStats>& process);

}  // namespace spillway
