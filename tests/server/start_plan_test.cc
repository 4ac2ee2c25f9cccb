// Plans that commands find at their start. The machine's profile lies in a cache of the test's own.
#include "server/start_plan.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "policy/hardware_json.h"
#include "scheduler/planning/hardware_cache.h"
#include "scheduler/planning/machine.h"
#include "scheduler/planning/plan_json.h"
#include "scheduler/planning/plan_search.h"
#include "tests/support/hardware.h"
#include "tests/support/temp_directory.h"

namespace spillway::start_plan_test {
namespace {

// opt-125m on this machine, with what was said.
struct Start {
  explicit Start(bool profiled, std::optional<bool> in_int8 = {}) {
    ::setenv("SPILLWAY_CACHE", cache.path().c_str(), 1);
    if (profiled) {
      const auto device = open_device({.kind = "cpu"});
      REQUIRE(device.ok());
      HardwareProfile hardware = test::sample_hardware(false);
      hardware.compute.in_int8 = in_int8.value_or(device.value()->in_int8(Format::kQ4));
      const std::string json = hardware_profile_json(hardware);
      REQUIRE(keep_profile(*device.value(), scratch_directories({}), json).ok());
    }
    flags.device = "cpu";
    flags.dummy_weights = true;
    flags.host_memory_bytes = uint64_t{1} << 30;
    options.wishes.block_sequences = 5;
    options.say = [this](const std::string& line) { said += line + "\n"; };
  }
  ~Start() { ::unsetenv("SPILLWAY_CACHE"); }

  Result<StartedRuntime> open() const { return open_planned("opt-125m", flags, options, workload); }
  bool heard(const std::string& text) const { return said.find(text) != std::string::npos; }

  TempDirectory cache;
  EngineFlags flags;
  RuntimeOptions options;
  std::vector<RequestGroup> workload = {{20, 10, 30}};
  std::string said;
};

TEST_CASE("a profile of other products with quantised weights is said to be one") {
  const bool in_int8 = open_device({.kind = "cpu"}).value()->in_int8(Format::kQ4);
  const auto format = GENERATE(Format::kQ4, Format::kF16);
  for (const bool alike : {true, false}) {
    Start start(true, in_int8 == alike);
    start.flags.format = format;
    REQUIRE(start.open().ok());
    INFO(start.said);
    CHECK(start.heard("Plan: the best of "));
    CHECK(start.heard("was measured when quantised weights were multiplied otherwise") ==
          (!alike && format == Format::kQ4));
  }
}

TEST_CASE("a plan is searched where the machine has a profile") {
  Start start(true);
  const auto started = start.open();
  INFO(start.said);
  REQUIRE(started.ok());
  CHECK(start.heard("Plan: the best of "));
  CHECK(start.heard("for 30 sequences of 20 + 10 tokens"));
  REQUIRE(started->predicted);
  CHECK(started->predicted->generated == 300);
  CHECK(started->predicted->tokens_per_second() > 0);
  // Resident weights, and no reason to run fewer than all together.
  CHECK(started->runtime->plan().block_sequences() == 30);
  // The machine's rates bound the sweeps that are to come.
  CHECK(started->runtime->scheduler().stats().bound_seconds == 0.0);
  CHECK(started->runtime->plan().weights.disk == 0);
}

TEST_CASE("the plan that is found is the plan that is carried out") {
  Start start(true);
  // Too little memory for all weights: what is found has shares on disk.
  start.flags.host_memory_bytes = uint64_t{600} << 20;
  const auto started = start.open();
  INFO(start.said);
  REQUIRE(started.ok());
  CHECK(start.heard("Plan: the best of "));
  const Plan& plan = started->runtime->plan();
  CHECK(plan.weights.disk > 0);

  const OpenedModel opened = open_model("opt-125m", start.flags, start.options).value();
  const auto profile = current_profile(*opened.device, scratch_directories({})).value();
  const PlanMachine machine = machine_of(opened, &*profile);
  PlanQuestion asked;
  asked.flags = start.flags;
  asked.workload = start.workload;
  asked.wishes = start.options.wishes;
  asked.lengths_known = false;
  asked.hardware = &*profile;
  asked.machine = &machine;
  asked.opened = &opened.model;
  const CostedChoice found = find_plan(asked).value();
  CHECK(plan_json(plan) == plan_json(*found.plan));
  CHECK(plan.weights == found.plan->weights);
  CHECK(plan.kv == found.plan->kv);
}

TEST_CASE("without a profile the rule of thumb places, and says so") {
  Start start(false);
  const auto started = start.open();
  REQUIRE(started.ok());
  CHECK(start.heard("default heuristic"));
  CHECK(start.heard("spillway profile"));
  CHECK(!started->predicted);
  CHECK(started->runtime->plan().block_sequences() == 5);
  CHECK_FALSE(started->runtime->scheduler().stats().bound_seconds.has_value());
}

TEST_CASE("what is said of the plan is not searched again, and predicted all the same") {
  Start start(true);
  start.flags.block = 7;
  CHECK(!leaves_plan_open(start.flags));
  const auto started = start.open();
  REQUIRE(started.ok());
  CHECK(!start.heard("Plan: "));
  CHECK(started->predicted);
  CHECK(started->runtime->plan().block_sequences() == 7);
}

TEST_CASE("a profile that cannot be read is named and does not stop the run") {
  Start start(true);
  const auto device = open_device({.kind = "cpu"});
  REQUIRE(device.ok());
  REQUIRE(keep_profile(*device.value(), scratch_directories({}), R"({"version": 99})").ok());
  const auto started = start.open();
  INFO(start.said);
  REQUIRE(started.ok());
  CHECK(start.heard("default heuristic"));
  CHECK(start.heard("99"));
  CHECK(!started->predicted);
}

TEST_CASE("requests longer than the model's positions are cut for the plan") {
  Start start(true);
  start.workload = {{100'000, 100'000, 0}};
  start.flags.host_memory_bytes = uint64_t{2} << 30;
  const auto started = start.open();
  INFO(start.said);
  REQUIRE(started.ok());
  CHECK(start.heard("full blocks of sequences of 2047 + 1 tokens"));
  CHECK(started->predicted);
  // Anything shorter may come.
  CHECK(started->runtime->plan().block_sequences() >= 256);
}

TEST_CASE("what fits nowhere is refused in the engine's words") {
  Start start(true);
  start.flags.host_memory_bytes = 1 << 20;
  const auto started = start.open();
  REQUIRE(!started.ok());
  CHECK(started.status().code() == Code::kInfeasible);
  CHECK(!start.heard("Plan: "));
}

}  // namespace
}  // namespace spillway::start_plan_test
