#include "policy/placement_program.h"

#include <algorithm>

#include "policy/linear_program.h"

namespace spillway {

namespace {

constexpr size_t kShares = 9;  // Weights on device, host, disk; cache and activations likewise
constexpr double kGib = 1 << 30;
constexpr size_t kSweepsMax = 200;

// `plan` with one share set to 1 and everything else on the device.
CostedPlan with_share(const CostedPlan& plan, uint64_t weights, size_t share) {
  CostedPlan one = plan;
  one.weights_from_disk = share == 2 ? weights : 0;
  one.weights_on_host = share == 1 ? weights : 0;
  one.kv_on_host = share == 4 ? 1 : 0;
  one.kv_on_disk = share == 5 ? 1 : 0;
  one.activations_on_host = share == 7 ? 1 : 0;
  one.activations_on_disk = share == 8 ? 1 : 0;
  return one;
}

}  // namespace

Result<PlacementShares> best_shares(const CostedPlan& plan, const MachineRates& rates,
                                    std::span<const PlannedSweeps> sweeps,
                                    const PlacementRoom& room) {
  constexpr double kInfinity = LinearProgram::kInfinity;
  LinearProgram program;
  std::array<LinearVariable, kShares> shares;
  const bool leaves[] = {room.weights_stream, room.kv_leaves, room.activations_leave};
  for (size_t i = 0; i < kShares; ++i) {
    const bool host = i % 3 == 1, away = i % 3 != 0;
    const bool too_far = i == 5 && !room.kv_to_disk;
    const bool allowed = (!host || plan.discrete) && (!away || leaves[i / 3]) && !too_far;
    shares[i] = program.add_variable(0, allowed ? 1 : 0, 0);
  }
  for (size_t kind = 0; kind < kShares; kind += 3) {
    program.add_constraint({{shares[kind], 1}, {shares[kind + 1], 1}, {shares[kind + 2], 1}}, 1, 1);
  }
  const double weights = static_cast<double>(room.weights) / kGib;
  const double kv = static_cast<double>(room.kv) / kGib;
  const double activations = static_cast<double>(room.activations) / kGib;
  const uint64_t rooms[] = {room.device, room.host, room.disk};
  for (size_t tier = 0; tier < 3; ++tier) {
    program.add_constraint(
        {{shares[tier], weights}, {shares[3 + tier], kv}, {shares[6 + tier], activations}},
        -kInfinity, static_cast<double>(rooms[tier]) / kGib);
  }

  const CostedPlan none = with_share(plan, room.weights, 0);
  std::vector<CostedPlan> with_each;
  for (size_t i = 0; i < kShares; ++i) with_each.push_back(with_share(plan, room.weights, i));
  // Times in units of the run's own, so that coefficients are near 1.
  const double unit = std::max(1e-9, predict(none, rates, sweeps).seconds());
  // If there are more than kSweepsMax sweeps, every `step`-th stands for its neighbours.
  const size_t step = 1 + sweeps.size() / kSweepsMax;
  for (size_t s = 0; s < sweeps.size(); s += step) {
    const PlannedSweeps& sweep = sweeps[s];
    const auto count = static_cast<double>(sweep.count * static_cast<int64_t>(step));
    const LinearVariable time = program.add_variable(0, kInfinity, count);
    const ResourceSeconds base = sweep_cost(none, rates, sweep);
    std::array<ResourceSeconds, kShares> cost;
    for (size_t i = 0; i < kShares; ++i) {
      cost[i] = sweep_cost(with_each[i], rates, sweep);
    }
    for (size_t r = 0; r < kResources; ++r) {
      // time - sum over shares of their added time >= time that does not depend on the shares
      std::vector<LinearTerm> terms = {{time, 1}};
      for (size_t i = 0; i < kShares; ++i) {
        const double added = (cost[i][r] - base[r]) / unit;
        if (added != 0) terms.push_back({shares[i], -added});
      }
      if (terms.size() > 1 || base[r] > 0) {
        program.add_constraint(terms, base[r] / unit, kInfinity);
      }
    }
  }
  SPILLWAY_ASSIGN_OR_RETURN(const LinearSolution found, program.minimize());
  if (found.outcome != LinearOutcome::kOptimal) {
    return Status(Code::kInfeasible, "weights, KV cache and activations have no room on any tier");
  }
  const auto tiers = [&](size_t first) {
    return TierShares{found[shares[first]], found[shares[first + 1]], found[shares[first + 2]]};
  };
  return PlacementShares{tiers(0), tiers(3), tiers(6)};
}

}  // namespace spillway
