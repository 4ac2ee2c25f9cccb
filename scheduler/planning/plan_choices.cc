#include "scheduler/planning/plan_choices.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "kernels/base/units.h"
#include "policy/pareto.h"

namespace spillway {

namespace {

// Plans whose predictions differ by a smaller fraction are equal.
constexpr double kEqual = 0.005;

// Bytes that a plan keeps on slower tiers.
uint64_t bytes_away(const CostedChoice& choice) {
  const Plan& plan = *choice.plan;
  uint64_t away = plan.weights.disk + plan.kv.disk + plan.activations.disk;
  if (plan.discrete) away += plan.weights.host + plan.kv.host + plan.activations.host;
  return away;
}

// Whether throughput and latency are both equal.
bool equals(const CostedChoice& a, const CostedChoice& b) {
  const auto close = [](double x, double y) { return std::abs(x - y) <= kEqual * y; };
  return close(a.latency_seconds, b.latency_seconds) &&
         close(a.prediction.tokens_per_second(), b.prediction.tokens_per_second());
}

std::vector<CostedChoice> unbeaten(std::span<const CostedChoice> choices) {
  std::vector<LatencyPoint> points;
  for (const CostedChoice& choice : choices) {
    points.push_back({choice.latency_seconds, choice.prediction.tokens_per_second()});
  }
  std::vector<CostedChoice> found;
  for (const size_t i : pareto_frontier(points, kEqual)) found.push_back(choices[i]);
  return found;
}

std::string shortest(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.10g", number);
  return text;
}

// The seconds in three significant digits, rounded up, so that the plan is within that limit.
std::string seconds_above(double seconds) {
  const double unit = std::pow(10.0, std::floor(std::log10(std::max(seconds, 1e-9))) - 2);
  for (double units = std::floor(seconds / unit);; ++units) {
    std::string text = shortest(units * unit);
    if (std::strtod(text.c_str(), nullptr) >= seconds) return text;
  }
}

}  // namespace

bool better(const CostedChoice& a, const CostedChoice& b) {
  const double speed = a.prediction.tokens_per_second(), other = b.prediction.tokens_per_second();
  if (std::abs(speed - other) > kEqual * other) return speed > other;
  // A smaller micro-batch saves a little memory, and each costs something that no model knows.
  const auto micro_batch = [](const CostedChoice& choice) {
    return choice.flags.micro_batch.value_or(std::numeric_limits<int64_t>::max());
  };
  if (micro_batch(a) != micro_batch(b)) return micro_batch(a) > micro_batch(b);
  return bytes_away(a) < bytes_away(b);
}

std::vector<CostedChoice> frontier_of(std::span<const CostedChoice> choices) {
  std::vector<CostedChoice> found = unbeaten(choices);
  for (CostedChoice& choice : found) {
    const CostedChoice* least = &choice;
    for (const CostedChoice& other : choices) {
      if (equals(choice, other) && bytes_away(other) < bytes_away(*least)) least = &other;
    }
    if (least != &choice) choice = CostedChoice(*least);
  }
  // Filter again: a tie-break can introduce a dominated plan.
  return unbeaten(found);
}

Status too_slow(std::span<const CostedChoice> choices, double limit) {
  const CostedChoice& lowest = *std::min_element(choices.begin(), choices.end(),
                                                 [](const CostedChoice& a, const CostedChoice& b) {
                                                   return a.latency_seconds < b.latency_seconds;
                                                 });
  const std::string speed = format_rate(lowest.prediction.tokens_per_second());
  const std::string seconds = seconds_above(lowest.latency_seconds);
  return {Code::kInfeasible, "no plan has a latency within --latency " + shortest(limit) +
                                 ": the fastest answer takes " + seconds + " s with --block " +
                                 std::to_string(*lowest.flags.block) + ", at " + speed +
                                 " tokens/s; --latency " + seconds + " fits"};
}

}  // namespace spillway
