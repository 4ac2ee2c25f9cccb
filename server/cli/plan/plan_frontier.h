// What `spillway plan` says of latency: the chosen plan's, and the frontier of throughput and
// latency as lines and JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/cli/plan/plan_report.h"

namespace spillway {

// Nothing, unless a limit or the frontier was asked for.
std::string latency_text(const PlanReport& report);

// "frontier": an array, where it was asked for.
void add_frontier(const PlanReport& report, nlohmann::json* object);

}  // namespace spillway
