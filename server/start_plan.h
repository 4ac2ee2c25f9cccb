// The plan for a command that was given none: the result of the search (plan_search.h) where
// `spillway profile` has measured this machine, else the engine's default heuristic
// (make_plan.cc). One line reports which, with the prediction. Any thread; blocks while it
// loads.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policy/cost_model.h"
#include "server/runtime.h"

namespace spillway {

struct StartedRuntime {
  std::unique_ptr<Runtime> runtime;
  std::optional<Prediction> predicted;  // None: there is no profile of this machine
};

// Whether all the flags that a plan decides are unset.
bool leaves_plan_open(const EngineFlags& flags);

// Searches a plan for `workload` if the flags leave it open, and opens the model with it. A
// workload's count of 0: full blocks; its lengths are cut to the model's positions. Empty: nothing
// is searched or predicted. `options` with lengths: those of every sequence; without: any length
// may come. Errors as Runtime::open(); failures of the profile or the search alone are only
// reported, and the default heuristic is used.
Result<StartedRuntime> open_planned(const std::string& model, const EngineFlags& flags,
                                    const RuntimeOptions& options,
                                    std::vector<RequestGroup> workload);

}  // namespace spillway
