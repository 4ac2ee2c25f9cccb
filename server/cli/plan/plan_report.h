// The result of `spillway plan`, as text and JSON.
#pragma once

#include <string>

#include "scheduler/planning/plan_search.h"
#include "server/cli/plan/plan.h"

namespace spillway {

struct PlanReport {
  PlanFlags flags;
  std::vector<RequestGroup> workload;
  CostedChoice choice;
  HardwareProfile hardware;
  int64_t tried = 0;                   // Plans that were placed and costed
  std::vector<CostedChoice> frontier;  // Empty: not asked for
};

// The workload of the plan: "512 + 32 tokens", or a file's means and maxima.
std::string workload_text(const PlanReport& report);

// A few lines, or with --explain the full report.
std::string plan_text(const PlanReport& report);

// The object of `plan --json`. Names and units of its fields are stable: programs read them.
std::string plan_report_json(const PlanReport& report);

// The plan file that --plan reads (server/cli/flags/plan_file.h).
std::string plan_file_text(const PlanReport& report);

}  // namespace spillway
