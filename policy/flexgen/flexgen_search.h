// The released FlexGen's search for a block and placement over its cost model
// (policy/flexgen/flexgen_cost.h, which names the source), with its enumeration and its stop rules.
// Pure arithmetic, any thread. Each block is a linear program of 0.1 ms: 20 ms for OPT-30B on a T4
// of 200 GiB; 1.5 s for OPT-125M with its cache pinned to 1500 GiB of disk.
#pragma once

#include <cstdint>
#include <optional>

#include "policy/flexgen/flexgen_cost.h"

namespace spillway {

struct FlexgenSearch {
  FlexgenPins pins;
  FlexgenLimits limits;
  std::optional<int64_t> micro_batch, micro_batches;  // At least 1
};

// The choice with the most tokens per second among micro-batches of 1, 2, 3, 4, 8, 16, ... until
// one does not fit, each with 1, 2, 3, ... micro-batches until the throughput falls or nothing
// fits. kInfeasible when nothing fits at all. Blocks of more than a million sequences are skipped.
// REQUIRES: validate(problem).ok().
Result<FlexgenChoice> flexgen_search(const FlexgenProblem& problem, const FlexgenSearch& search);

}  // namespace spillway
