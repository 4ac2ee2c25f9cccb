#include "policy/pareto.h"

#include <catch2/catch.hpp>
#include <random>

namespace spillway::pareto_test {
namespace {

bool beats(const LatencyPoint& a, const LatencyPoint& b) {
  return a.latency_seconds <= b.latency_seconds && a.tokens_per_second >= b.tokens_per_second &&
         (a.latency_seconds < b.latency_seconds || a.tokens_per_second > b.tokens_per_second);
}

TEST_CASE("the frontier is what nothing beats") {
  constexpr uint64_t kSeed = 17;
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 500; ++round) {
    std::vector<LatencyPoint> points(random() % 40);
    for (LatencyPoint& point : points) {
      // Few values, so that many are alike.
      point = {static_cast<double>(1 + random() % 12), static_cast<double>(1 + random() % 12)};
    }
    const std::vector<size_t> found = pareto_frontier(points, 0);
    INFO("seed " << kSeed << ", round " << round);
    CHECK(found.empty() == points.empty());
    std::vector<bool> taken(points.size());
    for (size_t i = 0; i < found.size(); ++i) {
      taken[found[i]] = true;
      if (i == 0) continue;
      CHECK(points[found[i]].latency_seconds > points[found[i - 1]].latency_seconds);
      CHECK(points[found[i]].tokens_per_second > points[found[i - 1]].tokens_per_second);
    }
    for (size_t i = 0; i < points.size(); ++i) {
      bool beaten = false, alike = false;
      for (size_t j = 0; j < points.size(); ++j) {
        beaten = beaten || beats(points[j], points[i]);
        alike = alike || (taken[j] && points[j].latency_seconds == points[i].latency_seconds &&
                          points[j].tokens_per_second == points[i].tokens_per_second);
      }
      CHECK((taken[i] && !beaten) == taken[i]);
      CHECK((beaten || alike));
      CHECK(!(beaten && alike));
    }
  }
}

TEST_CASE("a gain too small is none") {
  const std::vector<LatencyPoint> points = {{1, 100}, {2, 100.4}, {3, 100.6}, {4, 100.9}};
  CHECK(pareto_frontier(points, 0.005) == std::vector<size_t>{0, 2});
  CHECK(pareto_frontier(points, 0).size() == 4);
}

}  // namespace
}  // namespace spillway::pareto_test
