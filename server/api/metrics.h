// The Prometheus text of GET /metrics: the scheduler's counters, the plan's bytes by tier, what the
// HTTP server answered, the batches, the kernel's statistics of the process. Nothing is sampled or
// kept here: every scrape reads the current numbers. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "server/api/engine_metrics.h"
#include "server/http/http_counts.h"
#include "server/process_stats.h"

namespace spillway {

// The batches of a server, and the lines of those that are in progress or being finished.
struct BatchFigures {
  std::vector<std::pair<std::string, int64_t>> batches;  // By state: "in_progress", ...
  int64_t rows_pending = 0;  // Without a result, those that run included
  int64_t rows_completed = 0, rows_failed = 0;
};

// What there is around the engine. What is missing is left out.
struct ServerFigures {
  std::optional<HttpCounts::Totals> http;
  std::optional<BatchFigures> batches;
  std::optional<ProcessStats> process;
};

// Prometheus text format 0.0.4. Names and meanings of `vllm:...` are vLLM's, so that its dashboards
// work. `healthy`: there is no engine_trouble().
std::string metrics_text(std::string_view model_name, const SchedulerStats& stats, bool healthy,
                         const PlanFigures& plan, const ServerFigures& server = {});

}  // namespace spillway
