// The policy search (FlexGen, arXiv 2303.06865, section 4.3): block by block, a linear program over
// the shares of weights and KV cache on each tier finds the fastest placement. Every candidate is
// then placed by the code that carries plans out, so what is found fits, and costed as placed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policy/cost_model.h"
#include "scheduler/planning/make_plan.h"

namespace spillway {

struct PlanQuestion {
  std::string model;
  EngineFlags flags;  // What they name stays as it is
  std::vector<RequestGroup> workload;
  const HardwareProfile* hardware = nullptr;   // Outlives what is made of this
  int64_t prefill_tokens = 0;                  // Of one sweep; 0: the default
  std::optional<RequestMemory> requests = {};  // Of a command that answers over HTTP
  bool lengths_known = true;                   // False: room for sequences of any length is kept
  double latency_seconds = 0;                  // At most, of a full block; 0: no limit
  bool frontier = false;                       // Asked for, too: more blocks are looked at
  bool search_formats = false;                 // 4-bit weights and KV, too, unless flags name them
};

struct CostedChoice {
  EngineFlags flags;  // Block and shares pinned
  std::shared_ptr<const Plan> plan;
  CostedPlan costed;
  uint64_t kv_bytes_wanted = 0;  // Of a whole block's cache
  std::vector<PlannedSweeps> sweeps;
  Prediction prediction;
  int64_t sequences = 0;       // Of a full block: no more than the cache holds
  double latency_seconds = 0;  // Of such a block, from its start to its last token
};

struct FoundPlans {
  CostedChoice best;
  std::vector<CostedChoice>
      frontier;       // Of throughput and latency, where asked for: no plan that
                      // was looked at beats one of these in both; latency ascending
  int64_t tried = 0;  // Candidates that were placed
};

// The flags as they are; what they leave open the engine decides by the default heuristic.
Result<CostedChoice> evaluate_plan(const PlanQuestion& question, const EngineFlags& flags);

// The plan with most tokens a second whose latency is within the limit, and the frontier.
// kInfeasible: none fits, and the message is that of the smallest; or none is within the limit, and
// the message names the lowest latency found.
Result<FoundPlans> find_plans(const PlanQuestion& question);

// The best alone. `tried`: how many candidates were placed.
Result<CostedChoice> find_plan(const PlanQuestion& question, int64_t* tried = nullptr);

}  // namespace spillway
