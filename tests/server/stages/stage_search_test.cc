// What stages say of their machines, and the plan that is found by it.
#include "server/stages/stage_search.h"

#include <catch2/catch.hpp>
#include <cstdlib>

#include "policy/hardware_json.h"
#include "scheduler/planning/hardware_cache.h"
#include "scheduler/planning/machine.h"
#include "tests/support/hardware.h"
#include "tests/support/temp_directory.h"

namespace spillway::stage_search_test {
namespace {

// opt-125m on two stages of this machine, in a cache of the test's own.
struct Machine {
  explicit Machine(bool profiled) {
    ::setenv("SPILLWAY_CACHE", cache.path().c_str(), 1);
    flags.device = "cpu";
    flags.dummy_weights = true;
    flags.host_memory_bytes = uint64_t{1} << 30;
    flags.threads = 1;
    flags.stages = 2;
    if (profiled) {
      const auto device = open_device(device_choice(flags)).value();
      const std::string json = hardware_profile_json(test::sample_hardware(false));
      REQUIRE(keep_profile(*device, scratch_directories({}), json).ok());
    }
    opened.emplace(open_model("opt-125m", flags, {}).value());
  }
  ~Machine() { ::unsetenv("SPILLWAY_CACHE"); }

  Result<StageAnswer> search(const std::vector<StageMachineSeen>& machines,
                             const std::vector<RequestGroup>& workload) const {
    const std::vector<LayerRange> layers = {{6, 6}, {0, 6}};
    const std::vector<std::string> names = {"rank 0 (a)", "rank 1 (b)"};
    StageQuestion question{&*opened, machines, layers, true, {}, workload};
    question.wishes.layers = layers[0];
    return search_stages(question, names);
  }

  TempDirectory cache;
  EngineFlags flags;
  std::optional<OpenedModel> opened;
};

TEST_CASE("what a stage says of its machine arrives") {
  const Machine machine(true);
  const StageMachineSeen seen = see_stage_machine(*machine.opened, machine.flags, {}, 2);
  REQUIRE(seen.hardware);
  CHECK(seen.host_bytes == uint64_t{1} << 30);
  // It has its part of the disk.
  const HardwareProfile whole =
      current_profile(*machine.opened->device, scratch_directories({})).value().value();
  CHECK(seen.hardware->disk.read[0].rate.value == whole.disk.read[0].rate.value / 2);
  ByteWriter writer;
  write(seen, &writer);
  const std::vector<std::byte> bytes = writer.take();
  ByteReader reader(bytes);
  const StageMachineSeen read = read_stage_machine(&reader);
  CHECK(reader.ok());
  CHECK(reader.left().empty());
  REQUIRE(read.hardware);
  CHECK(hardware_profile_json(*read.hardware) == hardware_profile_json(*seen.hardware));
  CHECK(read.profile_command == seen.profile_command);
  CHECK(read.host_bytes == seen.host_bytes);
}

TEST_CASE("a stage without a profile is named, with the command that measures it") {
  const Machine machine(true);
  const StageMachineSeen seen = see_stage_machine(*machine.opened, machine.flags, {}, 1);
  StageMachineSeen unknown = seen;
  unknown.hardware.reset();
  const Status status = machine.search({seen, unknown}, {{20, 10, 30}}).status();
  CHECK(status.code() == Code::kNotFound);
  INFO(status.message());
  CHECK(status.message().find("no hardware profile of rank 1 (b) yet. Run `spillway profile "
                              "--threads 1` there once") != std::string::npos);
  RankSelf bound;
  bound.bound = true;
  bound.processors = {4, 6};
  CHECK(see_stage_machine(*machine.opened, machine.flags, bound, 1).profile_command ==
        "`taskset -c 4,6 spillway profile --threads 1`");
  CHECK_FALSE(see_stage_machine(*Machine(false).opened, machine.flags, {}, 1).hardware);
}

TEST_CASE("a plan of all stages is found, and what flags name stays") {
  Machine machine(true);
  const StageMachineSeen seen = see_stage_machine(*machine.opened, machine.flags, {}, 2);
  const Result<StageAnswer> found = machine.search({seen, seen}, {{500, 2000, 30}});
  INFO(found.status().message());
  REQUIRE(found.ok());
  CHECK(found->plan.prediction.tokens_per_second() > 0);
  // Cut to the model's 2,048 positions
  CHECK(found->line.find("Plan for 30 sequences of 500 + 1548 tokens: a block of ") == 0);
  CHECK(found->line.find("tokens/s predicted") != std::string::npos);
  machine.opened->flags.block = 6;
  machine.opened->flags.prefill_tokens = 77;
  const StageAnswer named = machine.search({seen, seen}, {{20, 10, 30}}).value();
  CHECK(named.plan.plans[0].block_sequences() == 6);
  CHECK(named.plan.plans[0].prefill_tokens() == 77);
}

TEST_CASE("in memory, where more may come, a block has room for them") {
  const Machine machine(true);
  const StageMachineSeen seen = see_stage_machine(*machine.opened, machine.flags, {}, 2);
  const StageAnswer found = machine.search({seen, seen}, {{20, 10, 0}}).value();
  CHECK(found.plan.plans[0].block_sequences() >= 512);
}

}  // namespace
}  // namespace spillway::stage_search_test
