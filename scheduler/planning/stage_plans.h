// Plans for a model in pipeline stages: the layers of each rank, a plan for each, and what they
// will give together. Pure arithmetic, any thread.
#pragma once

#include <span>
#include <vector>

#include "policy/stage_cost.h"
#include "policy/stage_split.h"
#include "scheduler/planning/make_plan.h"

namespace spillway {

// The layers of each rank: rank 1 has the first, and rank 0 the last. `ranks`: speed and memory of
// each. kInvalidArgument: there are too few layers, or --stage-layers has others.
Result<std::vector<LayerRange>> cut_layers(const ModelFileTable& table, const EngineFlags& flags,
                                           std::span<const StageMachine> ranks);

// The part of a budget that layers may take: beside them are the cache, buffers and the process.
constexpr uint64_t memory_for_layers(uint64_t budget_bytes) {
  return budget_bytes / 5 * 4;
}

struct StageHost {
  PlanMachine machine;
  const HardwareProfile* hardware = nullptr;
};

struct StagedPlan {
  std::vector<LayerRange> layers;  // By rank, as the others
  std::vector<Plan> plans;
  StagePrediction prediction;  // In the order of the layers: rank 1 is first, rank 0 last
};

// Of flags that name a block. `network`: bytes a second from each rank to the next. A group of the
// workload without a count stands for one block. kInfeasible: a rank's part fits nowhere.
Result<StagedPlan> plan_stages(const ModelToPlan& model, std::span<const StageHost> ranks,
                               std::span<const LayerRange> layers, const EngineFlags& flags,
                               const PlanWishes& wishes, std::span<const RequestGroup> workload,
                               double network);

// With the block and the prompt tokens of a sweep that give most tokens per second, unless the
// flags name them.
Result<StagedPlan> find_stage_plan(const ModelToPlan& model, std::span<const StageHost> ranks,
                                   std::span<const LayerRange> layers, const EngineFlags& flags,
                                   const PlanWishes& wishes, std::span<const RequestGroup> workload,
                                   double network);

}  // namespace spillway
