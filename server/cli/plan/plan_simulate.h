// `spillway plan --simulate` and `--cluster N`: what the plan that was found gives when its
// schedule is run event by event (policy/simulation/simulated_sweep.h), on one machine and on
// several.
#pragma once

#include <string>

#include "policy/simulation/simulated_run.h"
#include "scheduler/planning/plan_search.h"
#include "server/cli/plan/plan.h"

namespace spillway {

bool simulates(const PlanFlags& flags);

// --trace without a simulation; --cluster where there is none of it.
Status check_simulation(const PlanFlags& flags, const EngineFlags& engine);

// Simulates the choice, writes --trace, and adds what came of it to `text`: lines for people or,
// with --json, the member "simulated" of the object that it is.
Status add_simulation(const PlanFlags& flags, const EngineFlags& engine, const CostedChoice& choice,
                      const HardwareProfile& hardware, std::string* text);

// --cost-model flexgen --simulate: a policy that is given, as FlexGen runs it and by our schedule
// in the same places (policy/flexgen/flexgen_schedule.h), on --hardware (default t4-16gb).
Status simulate_as_flexgen(const PlanFlags& flags, const EngineFlags& engine,
                           const std::string& model);

// One run, for both: "7.21 tokens/s (prefill ..., decode ...)" and what the processor waited for.
std::string simulated_text(const SimulatedRun& run);
std::string simulated_json(const SimulatedRun& run);  // An object

// Writes the run's timeline to the file.
Status write_trace(const SimulatedRun& run, const std::string& path);

}  // namespace spillway
