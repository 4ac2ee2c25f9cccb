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

struct StartQuestion {
  std::string model;
  EngineFlags flags;
  EngineFlags unplanned;   // Used where nothing is searched: `flags` and the command's additions
  RuntimeOptions options;  // With lengths: those of every sequence. Without: any length may come.
  // The expected workload; count 0: full blocks. Cut to the model's positions. Empty: nothing is
  // searched or predicted.
  std::vector<RequestGroup> workload;
};

struct StartedRuntime {
  std::unique_ptr<Runtime> runtime;
  std::optional<Prediction> predicted;  // None: there is no profile of this machine
};

// Whether all the flags that a plan decides are unset.
bool leaves_plan_open(const EngineFlags& flags);

// Searches a plan if the flags leave it open, and opens the model with it. Errors as
// Runtime::open(); failures of the profile or the search alone are only reported, and the default
// heuristic is used.
Result<StartedRuntime> open_planned(const StartQuestion& question);

// The cost model's prediction for a runtime and a workload on this machine; none without a profile
// of it, or without a home directory for one.
Result<std::optional<Prediction>> predict_here(Runtime& runtime, const EngineFlags& flags,
                                               std::span<const RequestGroup> workload);

}  // namespace spillway
