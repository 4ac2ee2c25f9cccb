// The time of a run over pipeline stages (scheduler/stages/): as many sub-blocks as stages go
// round, so that the slowest stage sets the pace, or, where its part is small, the way once around.
// Pure arithmetic, any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "policy/cost_model.h"

namespace spillway {

// A stage: a plan whose shape has its layers alone, at the rates of its machine.
struct StageCost {
  CostedPlan plan;
  MachineRates rates;
};

struct StagePrediction {
  double prefill_seconds = 0, decode_seconds = 0;  // As in Prediction
  int64_t generated = 0;                           // Tokens
  std::vector<double> busy_seconds;                // Of each stage
  double network_seconds = 0;  // In which rows travel, one hop after another, of all sweeps

  double seconds() const { return prefill_seconds + decode_seconds; }
  double tokens_per_second() const {
    return seconds() > 0 ? static_cast<double>(generated) / seconds() : 0;
  }
  size_t slowest() const;
};

// `sweeps`: of one sub-block, in whose number the others are alike. `network`: bytes a second from
// each stage to the next.
StagePrediction predict_stages(std::span<const StageCost> stages,
                               std::span<const PlannedSweeps> sweeps, double network);

}  // namespace spillway
