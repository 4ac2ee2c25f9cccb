#include "policy/stage_cost.h"

#include <catch2/catch.hpp>

#include "tests/support/costed_plans.h"

namespace spillway::stage_cost_test {
namespace {

StageCost stage_of(int64_t layers, bool head, double memory = 40e9) {
  CostedPlan plan = test::costed_plan();
  plan.weight_bytes = plan.weight_bytes * static_cast<uint64_t>(layers) / 10;
  plan.shape.layers = layers;
  plan.head = head;
  const HardwareProfile hardware =
      test::simple_hardware({.memory_read = memory, .products = {{1, 40e9}, {64, 400e9}}});
  return {plan, MachineRates::of(hardware, plan).value()};
}

// Steps of so many sequences, of one sub-block.
std::vector<PlannedSweeps> steps(int64_t sequences) {
  PlannedSweeps sweeps;
  sweeps.count = 10;
  sweeps.work.decoding = sequences;
  sweeps.work.cached_rows = static_cast<double>(100 * sequences);
  return {sweeps};
}

constexpr double kFast = 1e15;

TEST_CASE("the slowest stage sets the pace of all") {
  const std::vector<StageCost> even = {stage_of(5, false), stage_of(5, true)};
  const auto sweeps = steps(32);
  const double first = sweep_seconds(even[0].plan, even[0].rates, sweeps[0]);
  const double last = sweep_seconds(even[1].plan, even[1].rates, sweeps[0]);
  CHECK(last > first);  // It has the head.
  const StagePrediction found = predict_stages(even, sweeps, kFast);
  // Two sub-blocks of 10 sweeps, and the way of the first to the last stage.
  CHECK(found.seconds() == Approx(20 * last + first).epsilon(1e-6));
  CHECK(found.generated == 2 * 10 * 32);
  CHECK(found.slowest() == 1);
  CHECK(found.busy_seconds[0] == Approx(20 * first));

  const std::vector<StageCost> uneven = {stage_of(8, false), stage_of(2, true)};
  CHECK(predict_stages(uneven, sweeps, kFast).seconds() > found.seconds());
  CHECK(predict_stages(uneven, sweeps, kFast).slowest() == 0);
}

TEST_CASE("a slow network costs time, and in the end all of it") {
  const std::vector<StageCost> stages = {stage_of(5, false), stage_of(5, true)};
  const auto sweeps = steps(32);
  const double alone = predict_stages(stages, sweeps, kFast).seconds();
  const StagePrediction slow = predict_stages(stages, sweeps, 1e6);
  const double hop = 4.0 * 32 * 1000 / 1e6;
  CHECK(slow.seconds() > alone);
  CHECK(slow.seconds() == Approx(20 * hop).epsilon(0.2));
  CHECK(slow.network_seconds == Approx(20 * hop));
}

TEST_CASE("prompts count for the prefill, with the tokens that they end in") {
  std::vector<PlannedSweeps> sweeps = steps(8);
  PlannedSweeps prompts;
  prompts.work.prompts = 8;
  prompts.work.prompt_tokens = 800;
  prompts.work.prompt_pairs = 8 * 5050;
  sweeps.insert(sweeps.begin(), prompts);
  const std::vector<StageCost> stages = {stage_of(5, false), stage_of(5, true)};
  const StagePrediction found = predict_stages(stages, sweeps, kFast);
  CHECK(found.prefill_seconds > 0);
  CHECK(found.decode_seconds > 0);
  CHECK(found.generated == 2 * (8 + 80));
}

}  // namespace
}  // namespace spillway::stage_cost_test
