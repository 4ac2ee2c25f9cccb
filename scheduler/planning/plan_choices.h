// Choosing among costed plans: by throughput, within a latency, or by both (Pareto frontier). For
// the search alone. Pure functions.
#pragma once

#include <span>
#include <vector>

#include "scheduler/planning/plan_search.h"

namespace spillway {

// Whether `a` has more tokens per second or, if equal (to half a per cent), larger micro-batches
// or, if these are equal, moves fewer bytes.
bool better(const CostedChoice& a, const CostedChoice& b);

// The choices that no other beats in both throughput and latency, latency ascending; of equal ones
// the one that moves fewer bytes.
std::vector<CostedChoice> frontier_of(std::span<const CostedChoice> choices);

// The error that no choice is within `limit` seconds: names the lowest latency and a limit that it
// meets. REQUIRES: a choice.
Status too_slow(std::span<const CostedChoice> choices, double limit);

}  // namespace spillway
