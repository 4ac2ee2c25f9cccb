// From a model, a device and budgets to a plan: pure arithmetic in microseconds, so that the search
// makes hundreds of them, and what it finds is what is carried out. Any thread.
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

// The machine that is planned for, now.
struct PlanMachine {
  DeviceTraits device;
  MemoryBudget host_budget;
  MemoryBudget device_budget;        // Of a device with memory of its own
  uint64_t disk_free_bytes = 0;      // On the disk of the scratch files
  bool host_attention_pays = false;  // The CPU attends to KV in host memory faster than the link
};

// What a command wants besides the flags.
struct PlanWishes {
  int64_t prefill_tokens_max = 0;  // Of one sweep; 0: the default
  int64_t prompt_tokens = 0;       // Of every sequence, and at most so many new ones; 0: unknown
  int64_t new_tokens = 0;
  std::optional<RequestMemory> requests;  // Of a command that answers over HTTP
};

// What the flags leave open is filled by the default heuristic. kInvalidArgument: flags or model
// are wrong. kInfeasible: does not fit the budgets; the message names the missing bytes and the
// smallest change.
Result<Plan> make_plan(const ModelToPlan& model, const PlanMachine& machine,
                       const EngineFlags& flags, const PlanWishes& wishes);

}  // namespace spillway
