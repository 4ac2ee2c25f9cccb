#include "policy/placement_program.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/support/costed_plans.h"

namespace spillway::placement_program_test {
namespace {

// What the program minimises, for shares that are given.
double seconds_with(CostedPlan plan, const MachineRates& rates,
                    const std::vector<PlannedSweeps>& sweeps, const PlacementRoom& room,
                    const PlacementShares& shares) {
  const auto weights = static_cast<double>(room.weights);
  plan.weights_from_disk = static_cast<uint64_t>(weights * shares.weights.disk);
  plan.weights_on_host = static_cast<uint64_t>(weights * shares.weights.host);
  plan.kv_on_disk = shares.kv.disk;
  plan.kv_on_host = shares.kv.host;
  plan.activations_on_disk = shares.activations.disk;
  plan.activations_on_host = shares.activations.host;
  return predict(plan, rates, sweeps).seconds();
}

bool fits(const PlacementRoom& room, const PlacementShares& shares, double slack) {
  const auto within = [&](double TierShares::*tier, uint64_t limit) {
    const double bytes = shares.weights.*tier * static_cast<double>(room.weights) +
                         shares.kv.*tier * static_cast<double>(room.kv) +
                         shares.activations.*tier * static_cast<double>(room.activations);
    return bytes <= static_cast<double>(limit) + slack;
  };
  return within(&TierShares::device, room.device) && within(&TierShares::host, room.host) &&
         within(&TierShares::disk, room.disk);
}

// Shares in so many steps.
std::vector<TierShares> grid(int steps, bool host) {
  std::vector<TierShares> found;
  const double step = 1.0 / steps;
  for (int on_disk = 0; on_disk <= steps; ++on_disk) {
    for (int on_host = 0; on_host <= (host ? steps - on_disk : 0); ++on_host) {
      found.push_back({(steps - on_disk - on_host) * step, on_host * step, on_disk * step});
    }
  }
  return found;
}

TEST_CASE("no shares that fit are faster than the program's") {
  std::mt19937_64 random(5);
  int feasible = 0, away = 0;
  for (int round = 0; round < 300; ++round) {
    CostedPlan plan = test::costed_plan();
    plan.discrete = round % 2 == 1;
    HardwareProfile hardware = test::cost_machine();
    hardware.link = HardwareProfile::Link{test::figure(5e9), test::figure(4e9), test::figure(8e9)};
    if (round % 4 == 0) hardware.disk.processor = test::figure(8e9);
    PlacementRoom room{.weights = plan.weight_bytes, .kv = 1 + random() % 2'000'000'000};
    room.device = random() % 1'500'000'000;
    room.host = random() % 1'000'000'000;
    room.disk = random() % 4'000'000'000;
    // In a third of the rounds activations may leave, too; they are large there, so that it
    // matters.
    room.activations_leave = round % 3 == 0;
    if (room.activations_leave) room.activations = random() % 500'000'000;
    const int steps = room.activations_leave ? 3 : 5;
    const std::vector<RequestGroup> groups = {{static_cast<int64_t>(1 + random() % 300),
                                               static_cast<int64_t>(1 + random() % 60),
                                               static_cast<int64_t>(1 + random() % 40)}};
    const auto sweeps = plan_sweeps(groups, std::vector<KvReservation>{{1, 400}},
                                    {.block_sequences = 64, .kv_bytes = 64});
    CostedPlan needs_all = plan;
    needs_all.kv_on_disk = 1;
    const MachineRates rates = MachineRates::of(hardware, needs_all).value();
    const std::vector<TierShares> stay = {TierShares()};
    const auto found = best_shares(plan, rates, sweeps, room);
    double best = 1e30;
    for (const TierShares& weights : grid(steps, plan.discrete)) {
      for (const TierShares& kv : grid(steps, plan.discrete)) {
        for (const TierShares& activations :
             room.activations_leave ? grid(steps, plan.discrete) : stay) {
          const PlacementShares shares{weights, kv, activations};
          if (!fits(room, shares, 0)) continue;
          best = std::min(best, seconds_with(plan, rates, sweeps, room, shares));
        }
      }
    }
    INFO("round " << round);
    if (!found.ok()) {
      CHECK(best == 1e30);
      continue;
    }
    ++feasible;
    if (found->activations.device < 0.99) ++away;
    if (!room.activations_leave) CHECK(found->activations.device == Approx(1));
    CHECK(fits(room, found.value(), 2000));
    CHECK(seconds_with(plan, rates, sweeps, room, found.value()) <= best * (1 + 1e-6));
  }
  CHECK(feasible > 100);
  CHECK(away > 10);
}

TEST_CASE("what must stay on the device stays") {
  const CostedPlan plan = test::costed_plan();
  CostedPlan needs_all = plan;
  needs_all.kv_on_disk = 1;
  const MachineRates rates = MachineRates::of(test::cost_machine(), needs_all).value();
  const std::vector<PlannedSweeps> sweeps = {
      {.count = 3, .work = {.decoding = 4, .cached_rows = 100}}};
  PlacementRoom room{.weights = 100, .kv = 100, .device = 150, .disk = 1000};
  room.weights_stream = false;
  CHECK(best_shares(plan, rates, sweeps, room)->weights.device == Approx(1));
  CHECK(best_shares(plan, rates, sweeps, room)->kv.disk >= Approx(0.5));
  room.kv_leaves = false;
  CHECK(best_shares(plan, rates, sweeps, room).status().code() == Code::kInfeasible);
}

}  // namespace
}  // namespace spillway::placement_program_test
