// What `spillway plan` found, for people and for programs.
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

// What was planned for: "512 + 32 tokens", or a file's means and maxima.
std::string workload_text(const PlanReport& report);

// A few lines, or with --explain all there is to say.
std::string plan_text(const PlanReport& report);

// The object of `plan --json`. Names and units of its fields stay: programs read them.
std::string plan_report_json(const PlanReport& report);

// The plan file that --plan reads (server/cli/flags/plan_file.h).
std::string plan_file_text(const PlanReport& report);

}  // namespace spillway
