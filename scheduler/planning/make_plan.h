// Makes a plan from a model, a device and budgets: pure arithmetic in microseconds, so that the
// search can make hundreds of plans, and the plan it finds is the one carried out. Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/status.h"
#include "kernels/device_traits.h"
#include "scheduler/planning/engine_flags.h"
#include "scheduler/planning/memory_budget.h"
#include "scheduler/planning/model_to_plan.h"
#include "scheduler/planning/plan.h"

namespace spillway {

// The present state of the machine that is planned for.
struct PlanMachine {
  DeviceTraits device;
  MemoryBudget host_budget;
  MemoryBudget device_budget;        // Discrete devices only
  uint64_t disk_free_bytes = 0;      // For scratch files
  bool host_attention_pays = false;  // The CPU attends to host KV faster than the link moves it
};

// A command's requirements in addition to the flags.
struct PlanWishes {
  int64_t block_sequences = 0;     // Block where flags name none; 0: the default
  int64_t prefill_tokens_max = 0;  // Per sweep; 0: the default
  int64_t prompt_tokens = 0;       // Of every sequence; 0: unknown
  int64_t new_tokens = 0;          // At most, of every sequence
  bool may_end_early = false;      // Sequences may end before: the cache is given out as they grow.
  std::optional<RequestMemory> requests;  // For a command that answers over HTTP
  // Only these are placed, those of a pipeline stage; none: all. Stages share and set aside
  // nothing.
  std::optional<LayerRange> layers;
  bool streams =
      false;  // Another stage's weights are streamed, so that sweeps are long in any case
};

// Fills settings that the flags leave open by the default heuristic. kInvalidArgument: flags or
// model are wrong. kInfeasible: the plan does not fit the budgets; the message names the missing
// bytes and the smallest change.
Result<Plan> make_plan(const ModelToPlan& model, const PlanMachine& machine,
                       const EngineFlags& flags, const PlanWishes& wishes);

}  // namespace spillway
