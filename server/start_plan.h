// What a command runs by when nobody gave it a plan: the search's (plan_search.h) where `spillway
// profile` has measured this machine, else the engine's default heuristic (runtime_open.cc). One
// line says which, and what is predicted. Any thread; blocks while it loads.
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
  EngineFlags unplanned;   // Carried out where nothing is searched: `flags` and what a command adds
  RuntimeOptions options;  // With lengths: those of every sequence. Without: any may come.
  // What the run is expected to be; count 0: full blocks. Cut to the model's positions. Empty:
  // nothing is searched or predicted.
  std::vector<RequestGroup> workload;
};

struct StartedRuntime {
  std::unique_ptr<Runtime> runtime;
  std::optional<Prediction> predicted;  // None: there is no profile of this machine
};

// Whether none of the flags that a plan decides is given.
bool leaves_plan_open(const EngineFlags& flags);

// Finds a plan if it is left open, and opens the model with it. Errors as Runtime::open(); what is
// wrong with the profile or the search alone is said and the default heuristic stands in.
Result<StartedRuntime> open_planned(const StartQuestion& question);

// What the cost model says of a runtime and a workload on this machine; none without a profile of
// it, or without a home for one.
Result<std::optional<Prediction>> predict_here(Runtime& runtime, const EngineFlags& flags,
                                               std::span<const RequestGroup> workload);

}  // namespace spillway
