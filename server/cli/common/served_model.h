// A model that is ready to complete requests, as `serve`, `batch` and `generate` see it.
// model_opener() makes one from the runtime; tests make one from a fake scheduler. Values; `owner`
// keeps the pointees alive.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/base/timeline.h"
#include "policy/sweep_schedule.h"
#include "scheduler/planning/engine_flags.h"
#include "scheduler/planning/memory_budget.h"
#include "scheduler/scheduler.h"
#include "server/api/completion.h"
#include "server/api/metrics.h"
#include "server/stages/staged_runtime.h"

namespace spillway {

struct ServedModel {
  ApiContext context;
  Scheduler* scheduler = nullptr;  // Null when opened without weights
  std::string identity;            // Changes with weights or format, as far as is known
  std::string format, kv_format;   // Their names; empty when opened without weights
  int64_t block = 0;               // Sequences of the plan's block; 0: not known
  std::optional<double> predicted_tokens_per_second;  // For the workload it was opened for
  std::vector<TierAmount> tier_bytes;                 // The plan's; empty without one
  Timeline* timeline = nullptr;                       // As Runtime::timeline()
  std::string plan;                                   // Its JSON form, as --plan reads it
  RequestMemory requests;                             // OpenFor::requests, reduced to the budget
  std::shared_ptr<void> owner;
};

// A command's purpose for the model.
struct OpenFor {
  bool tokenizer_only = false;  // Does not load the weights
  bool timeline = false;        // ServedModel::timeline is there
  // The expected workload, as far as is known: a plan is searched for it. Empty: no search.
  std::vector<RequestGroup> workload;
  std::optional<RequestMemory> requests = {};  // Set by commands that answer clients
  // Called before a model directory is packed, which takes minutes and gigabytes, with the
  // beginning of `identity` up to a blank. Its error is returned. May be empty.
  std::function<Status(const std::string&)> accepts_source = {};
  // With --stages: this process, which leads the others. Null: it has the whole model.
  std::shared_ptr<StageRank> stages = {};
};

using OpenModel = std::function<Result<ServedModel>(const std::string& model, const EngineFlags&,
                                                    const OpenFor&)>;

// Opens MODEL by the flags and keeps it alive in ServedModel::owner. Progress is reported on
// stderr, a line each.
OpenModel model_opener();

}  // namespace spillway
