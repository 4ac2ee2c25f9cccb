// Choosing among plans that were costed: by throughput, within a latency, or both against each
// other. For the search alone. Pure functions.
#pragma once

#include <span>
#include <vector>

#include "scheduler/planning/plan_search.h"

namespace spillway {

// More tokens a second; of equals (to half a per cent) the one that moves less.
bool better(const CostedChoice& a, const CostedChoice& b);

// Those that no other beats in both throughput and latency, latency ascending; of equals the one
// that moves less.
std::vector<CostedChoice> frontier_of(std::span<const CostedChoice> choices);

// That none of the choices is within `limit` seconds: names the lowest latency and a limit that it
// keeps. REQUIRES: there is a choice.
Status too_slow(std::span<const CostedChoice> choices, double limit);

}  // namespace spillway
