#include "policy/pareto.h"

#include <algorithm>
#include <numeric>

namespace spillway {

std::vector<size_t> pareto_frontier(std::span<const LatencyPoint> points, double gain) {
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const LatencyPoint &one = points[a], &other = points[b];
    if (one.latency_seconds != other.latency_seconds) {
      return one.latency_seconds < other.latency_seconds;
    }
    return one.tokens_per_second > other.tokens_per_second;
  });
  std::vector<size_t> found;
  for (const size_t i : order) {
    if (!found.empty() &&
        !(points[i].tokens_per_second > points[found.back()].tokens_per_second * (1 + gain))) {
      continue;
    }
    found.push_back(i);
  }
  return found;
}

}  // namespace spillway
