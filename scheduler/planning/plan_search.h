// The policy search (FlexGen, arXiv 2303.06865, section 4.3): block by block, a linear program over
// the shares of weights and KV cache on each tier finds the fastest placement. Every candidate is
// then placed by make_plan(), so that the result fits, and costed as placed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policy/cost_model.h"
#include "scheduler/planning/make_plan.h"

namespace spillway {

struct PlanQuestion {
  std::string model;  // Opened in each format that is searched, unless `opened` is it
  EngineFlags flags;  // Settings they name are not searched
  std::vector<RequestGroup> workload;
  PlanWishes wishes;            // Their lengths are the workload's
  bool lengths_known = true;    // False: sequences of any length must fit
  double latency_seconds = 0;   // Limit for a full block; 0: none
  bool frontier = false;        // Find it, too: more blocks are tried
  bool search_formats = false;  // Try weights and KV of 8 and 4 bits, unless flags name formats
  // These outlive the question's results.
  const HardwareProfile* hardware = nullptr;
  const PlanMachine* machine = nullptr;  // To be planned for; null: the profile's
  const ModelToPlan* opened = nullptr;   // `model` in the flags' format; null: not opened yet
};

// The machine that a profile describes, all of its free memory available.
Result<PlanMachine> machine_of_profile(const HardwareProfile& hardware, const EngineFlags& flags);

struct CostedChoice {
  EngineFlags flags;  // Block and shares pinned
  std::shared_ptr<const Plan> plan;
  CostedPlan costed;
  uint64_t kv_bytes_wanted = 0;  // Cache of a full block
  std::vector<PlannedSweeps> sweeps;
  Prediction prediction;
  int64_t sequences = 0;       // In a full block: at most what the cache holds
  double latency_seconds = 0;  // From the start of a full block to its last token
};

struct FoundPlans {
  CostedChoice best;
  std::vector<CostedChoice> frontier;  // If requested, latency ascending: no plan tried beats one
                                       // of these in both throughput and latency
  int64_t tried = 0;                   // Candidates that were placed
};

// Costs the plan of `flags`; settings that they leave open are filled by the default heuristic.
Result<CostedChoice> evaluate_plan(const PlanQuestion& question, const EngineFlags& flags);

// Finds the plan with most tokens per second whose latency is within the limit, and the frontier.
// kInfeasible: no plan fits, and the message is the smallest plan's; or none is within the limit,
// and the message names the lowest latency found.
Result<FoundPlans> find_plans(const PlanQuestion& question);

// The choice with the target of prompt tokens a sweep that is best while more requests of the
// workload wait than the block holds, however many: `choice` itself where none gains, or where a
// full block would no longer be within the latency limit.
CostedChoice with_target_for_stream(const PlanQuestion& question, const CostedChoice& choice);

// Finds the best plan alone. `tried`: number of candidates that were placed.
Result<CostedChoice> find_plan(const PlanQuestion& question, int64_t* tried = nullptr);

}  // namespace spillway
