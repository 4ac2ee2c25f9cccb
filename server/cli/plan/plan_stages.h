// `spillway plan --stages N`: a model on N machines like this one, or that of --hardware, as
// pipeline stages; what they give together, and what one machine less or more would.
#pragma once

#include <string>
#include <vector>

#include "scheduler/planning/stage_plans.h"
#include "server/cli/plan/plan.h"

namespace spillway {

struct StagesReport {
  PlanFlags flags;
  EngineFlags engine;  // As they were given
  HardwareProfile hardware;
  std::string model, formats;
  StagedPlan plan;
  // Of 1 machine, of N and of N + 1: tokens per second; 0: no plan fits, or there are too few
  // layers.
  struct Row {
    int64_t machines;
    double tokens_per_second;
  };
  std::vector<Row> rows;
};

// Fills in all but flags, engine and hardware. Of a model directory the first use packs it.
Status find_stages(const std::string& model, const EngineFlags& flags,
                   const std::vector<RequestGroup>& workload, StagesReport* report);

std::string stages_text(const StagesReport& report);
// Names and units of its fields are stable: programs read them.
std::string stages_json(const StagesReport& report);

}  // namespace spillway
