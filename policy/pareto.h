// The Pareto frontier of plans by throughput and latency: the plans that no other beats in both.
// Pure arithmetic, any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace spillway {

struct LatencyPoint {
  double latency_seconds = 0;
  double tokens_per_second = 0;
};

// The indices of the points that are on the frontier, latency ascending. A point whose throughput
// is not more than `gain` (0.005: half a per cent) above that of one with no more latency is left
// out; of equal points the first is taken.
std::vector<size_t> pareto_frontier(std::span<const LatencyPoint> points, double gain);

}  // namespace spillway
