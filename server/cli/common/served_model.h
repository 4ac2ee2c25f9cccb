// A model that is ready to complete requests, as `serve`, `batch` and `generate` see it.
// model_opener() makes one of the runtime; tests make one of a fake scheduler. Values; `owner`
// keeps the pointees alive.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "policy/sweep_schedule.h"
#include "scheduler/planning/engine_flags.h"
#include "scheduler/planning/memory_budget.h"
#include "scheduler/scheduler.h"
#include "server/api/completion.h"
#include "server/api/metrics.h"

namespace spillway {

struct ServedModel {
  ApiContext context;
  Scheduler* scheduler = nullptr;  // Null when opened without weights
  std::string identity;            // Differs whenever weights or format differ, as far as is known
  std::optional<double> predicted_tokens_per_second;  // Of the workload it was opened for
  std::vector<TierAmount> tier_bytes;                 // Of the plan; empty without one
  std::string plan;                                   // Its JSON form, as --plan reads it
  RequestMemory requests;                             // What OpenFor asked for, within the budget
  std::shared_ptr<void> owner;
};

// What a command needs the model for.
struct OpenFor {
  bool tokenizer_only = false;  // Leaves the weights where they are
  // What is going to run, as far as is known: a plan is searched for it. Empty: none is.
  std::vector<RequestGroup> workload;
  std::optional<RequestMemory> requests = {};  // Of a command that answers others
  // Asked before a model directory is packed, which is minutes and gigabytes, with what `identity`
  // will begin with, up to a blank. Its error is the answer. May be empty.
  std::function<Status(const std::string&)> accepts_source = {};
};

using OpenModel = std::function<Result<ServedModel>(const std::string& model, const EngineFlags&,
                                                    const OpenFor&)>;

// Opens MODEL as the flags say and keeps it alive in ServedModel::owner. What goes on is said on
// stderr, a line each. kTokenizer reads only the packed file's table.
OpenModel model_opener();

}  // namespace spillway
