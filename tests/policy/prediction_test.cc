// How a prediction is put together from its sweeps, a head of few rows at a time, and a cache that
// may not go to disk.
#include <catch2/catch.hpp>
#include <vector>

#include "policy/placement_program.h"
#include "tests/support/costed_plans.h"

namespace spillway::prediction_test {
namespace {

TEST_CASE("sweeps up to the last prompt are the prefill, the others decode") {
  const CostedPlan plan = test::costed_plan();
  const MachineRates rates = MachineRates::of(test::cost_machine(), plan).value();
  const PlannedSweeps prompts{
      .count = 1,
      .work = {.prompts = 4, .prompt_tokens = 400, .prompt_rows = 400, .prompt_pairs = 20'200}};
  const PlannedSweeps steps{.count = 7, .work = {.decoding = 4, .cached_rows = 404}};
  const auto alone = [&](const PlannedSweeps& sweeps) {
    return predict(plan, rates, std::vector{sweeps}).seconds();
  };
  const Prediction once = predict(plan, rates, std::vector{prompts, steps});
  CHECK(once.prefill_seconds == Approx(alone(prompts)));
  CHECK(once.decode_seconds == Approx(alone(steps)));
  // Steps between prompts are part of the prefill.
  const Prediction twice = predict(plan, rates, std::vector{prompts, steps, prompts, steps});
  CHECK(twice.prefill_seconds == Approx(2 * alone(prompts) + alone(steps)));
  CHECK(twice.decode_seconds == Approx(alone(steps)));
}

TEST_CASE("a longer run takes what lies between two shorter ones so many times more") {
  Prediction shorter, longer;
  shorter.prefill_seconds = 10;
  shorter.decode_seconds = 5;
  shorter.generated = 100;
  shorter.busy[0] = 7;
  longer.prefill_seconds = 18;
  longer.decode_seconds = 5;
  longer.generated = 200;
  longer.busy[0] = 13;
  const Prediction found = prolonged(shorter, longer, 3);
  CHECK(found.prefill_seconds == Approx(18 + 3 * 8));
  CHECK(found.decode_seconds == Approx(5));
  CHECK(found.generated == 500);
  CHECK(found.busy[0] == Approx(13 + 3 * 6));
}

TEST_CASE("chunks that do not end their prompts are computed like others") {
  const CostedPlan plan = test::costed_plan();
  const MachineRates rates = MachineRates::of(test::cost_machine(), plan).value();
  const auto compute = [&](const SweepWork& work) {
    return sweep_cost(plan, rates, {.count = 1, .work = work})[index(Resource::kCompute)];
  };
  const double without = compute({.decoding = 4, .cached_rows = 400});
  const double with =
      compute({.decoding = 4, .prompts_unfinished = 1, .prompt_tokens = 300, .cached_rows = 400});
  const double ended =
      compute({.decoding = 4, .prompts = 1, .prompt_tokens = 300, .cached_rows = 400});
  CHECK(with > 5 * without);
  CHECK(with < ended);  // Whose last row goes through the head
  CHECK(with > 0.9 * ended);
}

TEST_CASE("a head that takes few rows at a time is computed as often as they need") {
  CostedPlan plan = test::costed_plan();
  const MachineRates rates = MachineRates::of(test::cost_machine(), plan).value();
  const PlannedSweeps steps{.count = 1, .work = {.decoding = 40, .cached_rows = 4000}};
  const auto compute = [&](int64_t head_rows) {
    plan.head_rows = head_rows;
    return sweep_cost(plan, rates, steps)[static_cast<size_t>(Resource::kCompute)];
  };
  const double weights = 5e6;  // 5,000 ids of 1,000 columns
  const double whole = rates.seconds_per_weight(40);
  const double parts = 2 * rates.seconds_per_weight(16) + rates.seconds_per_weight(8);
  CHECK(compute(16) - compute(40) == Approx(weights * (parts - whole)));
}

TEST_CASE("a cache that may not go to disk does not, even where nothing else fits") {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  const CostedPlan plan = test::costed_plan();
  const MachineRates rates = MachineRates::of(test::cost_machine(), plan).value();
  const std::vector<PlannedSweeps> steps = {
      {.count = 10, .work = {.decoding = 4, .cached_rows = 400}}};
  PlacementRoom room;
  room.weights = kGiB;
  room.kv = 4 * kGiB;
  room.activations = kGiB / 64;
  room.device = 3 * kGiB;
  room.disk = 100 * kGiB;
  room.weights_stream = room.kv_leaves = true;
  room.kv_to_disk = true;
  const auto shares = best_shares(plan, rates, steps, room);
  REQUIRE(shares.ok());
  CHECK(shares->kv.disk > 0.2);
  room.kv_to_disk = false;
  CHECK(best_shares(plan, rates, steps, room).status().code() == Code::kInfeasible);
}

}  // namespace
}  // namespace spillway::prediction_test
