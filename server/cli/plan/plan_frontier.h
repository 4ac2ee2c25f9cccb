// Latency in the output of `spillway plan`: the chosen plan's, and the frontier of throughput and
// latency as lines and JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/cli/plan/plan_report.h"

namespace spillway {

// Empty, unless a limit or the frontier was asked for.
std::string latency_text(const PlanReport& report);

// Adds "frontier", an array, if it was asked for.
void add_frontier(const PlanReport& report, nlohmann::json* object);

}  // namespace spillway
