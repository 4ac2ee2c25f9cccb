// `spillway plan --simulate` and `--cluster N`: the throughput of the chosen plan when its schedule
// is simulated event by event (policy/simulation/simulated_sweep.h), on one machine and on several.
#pragma once

#include <string>

#include "policy/simulation/simulated_run.h"
#include "scheduler/planning/plan_search.h"
#include "server/cli/plan/plan.h"

namespace spillway {

bool simulates(const PlanFlags& flags);

// Refuses --trace without a simulation, and --cluster where it cannot be simulated.
Status check_simulation(const PlanFlags& flags, const EngineFlags& engine);

// Simulates the choice, writes --trace, and adds the result to `text`: lines of text or, with
// --json, the member "simulated" of the object in `text`.
Status add_simulation(const PlanFlags& flags, const EngineFlags& engine, const CostedChoice& choice,
                      const HardwareProfile& hardware, std::string* text);

// --cost-model flexgen --simulate: a given policy, run as by FlexGen and by our schedule with the
// same placement (policy/flexgen/flexgen_schedule.h), on --hardware (default t4-16gb).
Status simulate_as_flexgen(const PlanFlags& flags, const EngineFlags& engine,
                           const std::string& model);

// One run, for both: "7.21 tokens/s (prefill ..., decode ...)" and the processor's waits.
std::string simulated_text(const SimulatedRun& run);
std::string simulated_json(const SimulatedRun& run);  // An object

// Writes the run's timeline to the file.
Status write_trace(const SimulatedRun& run, const std::string& path);

}  // namespace spillway
