#include "scheduler/planning/stage_plans.h"

#include <catch2/catch.hpp>

#include "scheduler/planning/plan_search.h"
#include "scheduler/planning/profile_traits.h"
#include "tests/support/hardware.h"

namespace spillway::stage_plans_test {
namespace {

using test::figure;

HardwareProfile hardware_of(double memory) {
  HardwareProfile hardware =
      test::simple_hardware({.memory_read = 30e9,
                             .prompt_attention = 400e9,
                             .decode_attention = 20e9,
                             .disk_read = 3e9,
                             .disk_write = 2e9,
                             .products = {{1, 15e9}, {16, 900e9}, {64, 900e9}, {512, 900e9}},
                             .formats = {Format::kF16, Format::kBF16, Format::kQ4}});
  hardware.compute.memory_bytes = hardware.compute.memory_free_bytes = figure(memory);
  hardware.host = {figure(memory), figure(memory), figure(30e9), figure(20e9)};
  hardware.disk.free_bytes = figure(2e12);
  return hardware;
}

struct Question {
  explicit Question(double memory) : hardware(hardware_of(memory)) {
    flags.dummy_weights = true;
    model = open_model_to_plan("opt-6.7b", flags, traits_of(hardware).value(), {}).value();
  }
  Result<std::vector<LayerRange>> cut(const std::vector<StageMachine>& machines) const {
    return cut_layers(*model.table, flags, machines);
  }
  Result<StagedPlan> find(size_t stages) const {
    const StageHost host{machine_of_profile(hardware, flags).value(), &hardware};
    const std::vector<StageMachine> machines(
        stages, {1, memory_for_layers(host.machine.host_budget.bytes), 0, 0});
    PlanWishes wishes;
    wishes.prompt_tokens = wishes.new_tokens = 64;
    return find_stage_plan(model, std::vector(stages, host), cut(machines).value(), flags, wishes,
                           workload, 1.25e9);
  }

  HardwareProfile hardware;
  EngineFlags flags;
  ModelToPlan model;
  std::vector<RequestGroup> workload = {{64, 64, 0}};
};

TEST_CASE("layers are cut from rank 1 on, and rank 0 has the last") {
  const Question asked(8e9);
  const StageMachine one{1, uint64_t{1} << 40, 0, 0};
  const auto ranges = asked.cut({one, one, one}).value();
  REQUIRE(ranges.size() == 3);
  CHECK(ranges[1].first == 0);
  CHECK(ranges[2].first == ranges[1].count);
  CHECK(ranges[0].first == ranges[2].end());
  CHECK(ranges[0].end() == 32);
  CHECK(ranges[0].count < ranges[1].count);  // The head is work, too.

  Question told(8e9);
  told.flags.stage_layers = {2, 30};
  CHECK(told.cut({one, one}).value()[0] == LayerRange{30, 2});
  CHECK(told.cut({one, one}).value()[1] == LayerRange{0, 30});
  told.flags.stage_layers = {2, 3};
  CHECK(told.cut({one, one}).status().code() == Code::kInvalidArgument);
  CHECK(asked.cut(std::vector(33, one)).status().code() == Code::kInvalidArgument);
}

TEST_CASE("a model that two machines hold together is worth more than twice") {
  Question asked(10e9);
  asked.workload = {{64, 64, 16}};  // So few that weights are what memory is for
  const StagedPlan two = asked.find(2).value();
  CHECK(two.plans[0].weights.disk + two.plans[1].weights.disk == 0);
  CHECK(two.plans[0].weights.device < 7.4e9);
  PlanQuestion alone;
  alone.model = "opt-6.7b";
  alone.flags = asked.flags;
  alone.workload = asked.workload;
  alone.hardware = &asked.hardware;
  const double one = find_plan(alone)->prediction.tokens_per_second();
  INFO(two.prediction.tokens_per_second() << " and " << one << " tokens/s");
  CHECK(two.prediction.tokens_per_second() > 2 * one);
  for (const double busy : two.prediction.busy_seconds) CHECK(busy <= two.prediction.seconds());
}

TEST_CASE("stages that still do not hold the model stream their part") {
  const StagedPlan two = Question(4e9).find(2).value();
  CHECK(two.plans[0].weights.disk > 0);
  CHECK(two.plans[1].weights.disk > 0);
}

TEST_CASE("a rank whose part fits nowhere is named") {
  const Status status = Question(1e8).find(2).status();
  CHECK(status.code() == Code::kInfeasible);
  CHECK(status.message().find("rank ") == 0);
}

}  // namespace
}  // namespace spillway::stage_plans_test
