// Runtimes over ranks that are threads of this process: the steps in which they open a model, and
// what each side learns of the other's errors.
#include "server/stages/staged_runtime.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <future>

#include "kernels/ranks/thread_mail.h"
#include "policy/hardware_json.h"
#include "scheduler/planning/hardware_cache.h"
#include "scheduler/planning/machine.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/hardware.h"
#include "tests/support/temp_directory.h"

namespace spillway::staged_runtime_test {
namespace {

EngineFlags flags_of(int64_t stages) {
  EngineFlags flags;
  flags.device = "cpu";
  flags.dummy_weights = true;
  flags.host_memory_bytes = uint64_t{1} << 30;
  flags.threads = 1;
  flags.block = 4;
  flags.max_model_len = 128;
  flags.stages = stages;
  return flags;
}

std::vector<int32_t> tokens_of(Runtime& runtime) {
  Request request;
  request.prompt = {5, 6, 7, 8};
  request.max_tokens = 6;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  const auto sink = std::make_shared<test::CollectingSink>();
  REQUIRE(runtime.scheduler().submit(request, sink).ok());
  const Finish finish = sink->wait();
  INFO(finish.status.message());
  CHECK(finish.reason == FinishReason::kLength);
  return sink->tokens;
}

// What rank 0 does, while others follow with their flags.
struct Ranks {
  explicit Ranks(const std::vector<EngineFlags>& flags,
                 const std::string& others_model = "opt-125m",
                 const std::vector<RequestGroup>& workload = {}) {
    std::vector<std::unique_ptr<RankMail>> mail = thread_mail(static_cast<int>(flags.size()));
    for (size_t i = 1; i < flags.size(); ++i) {
      followed.push_back(std::async(
          std::launch::async,
          [own = std::shared_ptr<RankMail>(std::move(mail[i])), mine = flags[i], others_model] {
            const auto joined = join_stages(own, mine);
            return joined.ok() ? follow_stages(*joined.value(), others_model, mine)
                               : joined.status();
          }));
    }
    auto joined = join_stages(std::move(mail[0]), flags[0]);
    REQUIRE(joined.ok());
    rank = std::move(joined).value();
    RuntimeOptions options;
    options.say = [this](const std::string& line) { said += line + "\n"; };
    opened = open_stages(*rank, "opt-125m", flags[0], options, workload);
  }
  // Of rank 1 on, when rank 0 has ended.
  std::vector<Code> codes() {
    opened = Status(Code::kCancelled, "ended");
    rank.reset();
    std::vector<Code> all;
    for (auto& one : followed) all.push_back(one.get().code());
    return all;
  }

  std::vector<std::future<Status>> followed;
  std::unique_ptr<StageRank> rank;
  Result<StartedStages> opened = Status(Code::kCancelled, "not yet");
  std::string said;
};

TEST_CASE("a runtime of several ranks gives the tokens of one") {
  const auto whole = Runtime::open("opt-125m", flags_of(1), {});
  REQUIRE(whole.ok());
  const std::vector<int32_t> expected = tokens_of(*whole.value());
  const int64_t stages = 3;
  Ranks ranks(std::vector(static_cast<size_t>(stages), flags_of(stages)));
  INFO(ranks.opened.status().message());
  REQUIRE(ranks.opened.ok());
  CHECK(tokens_of(*ranks.opened->runtime) == expected);
  CHECK(ranks.said.find("rank 1 (") != std::string::npos);
  CHECK(ranks.said.find("and the head") != std::string::npos);
  CHECK(ranks.codes() == std::vector<Code>(static_cast<size_t>(stages - 1), Code::kOk));
}

TEST_CASE("a runtime of stages of several ranks gives the tokens of as many ranks") {
  EngineFlags flags = flags_of(1);
  flags.ranks = flags.threads = 3;
  const auto alone = Runtime::open("opt-125m", flags, {});
  REQUIRE(alone.ok());
  const std::vector<int32_t> expected = tokens_of(*alone.value());
  flags.stages = 2;
  Ranks ranks({flags, flags});
  INFO(ranks.opened.status().message());
  REQUIRE(ranks.opened.ok());
  CHECK(tokens_of(*ranks.opened->runtime) == expected);
  INFO(ranks.said);
  CHECK(ranks.said.find(" and the head: opt-125m: rank 2 of 3: ") != std::string::npos);
  CHECK(ranks.said.find("): layers 0 to ") != std::string::npos);
  CHECK(ranks.codes() == std::vector<Code>{Code::kOk});
}

TEST_CASE("an error of a rank that shares a stage's layers is rank 0's, and ends all") {
  EngineFlags flags = flags_of(2), few = flags;
  flags.ranks = flags.threads = few.ranks = 2;
  few.threads = 1;
  Ranks ranks({flags, few});
  REQUIRE_FALSE(ranks.opened.ok());
  CHECK(ranks.opened.status().message().find("2 ranks need as many threads") != std::string::npos);
  CHECK(ranks.codes() == std::vector<Code>{Code::kInvalidArgument});
}

TEST_CASE("stages search for their plan where all have a profile") {
  const TempDirectory cache;
  ::setenv("SPILLWAY_CACHE", cache.path().c_str(), 1);
  EngineFlags flags = flags_of(2);
  flags.block.reset();
  const std::vector<RequestGroup> workload = {{20, 10, 30}};
  {
    Ranks ranks({flags, flags}, "opt-125m", workload);
    INFO(ranks.opened.status().message());
    REQUIRE(ranks.opened.ok());
    CHECK_FALSE(ranks.opened->predicted);
    CHECK(ranks.said.find(
              "Placed by the default heuristic: there is no hardware profile of rank 0") !=
          std::string::npos);
  }
  const auto device = open_device(device_choice(flags)).value();
  const std::string json = hardware_profile_json(test::sample_hardware(false));
  REQUIRE(keep_profile(*device, scratch_directories({}), json).ok());
  Ranks ranks({flags, flags}, "opt-125m", workload);
  ::unsetenv("SPILLWAY_CACHE");
  INFO(ranks.said);
  REQUIRE(ranks.opened.ok());
  CHECK(ranks.said.find("Plan for 30 sequences of 20 + 10 tokens: ") != std::string::npos);
  REQUIRE(ranks.opened->predicted);
  CHECK(ranks.opened->predicted->generated == 300);
  CHECK(tokens_of(*ranks.opened->runtime).size() == 6);
}

TEST_CASE("another rank's error is rank 0's, with its name, and ends all") {
  EngineFlags small = flags_of(3);
  small.host_memory_bytes = uint64_t{1} << 20;
  Ranks ranks({flags_of(3), flags_of(3), small});
  REQUIRE_FALSE(ranks.opened.ok());
  CHECK(ranks.opened.status().code() == Code::kInfeasible);
  CHECK(ranks.opened.status().message().find("rank 2 (") == 0);
  CHECK(ranks.codes() == std::vector<Code>{Code::kCancelled, Code::kInfeasible});
}

TEST_CASE("rank 0's error ends the others") {
  EngineFlags wrong = flags_of(2);
  wrong.stage_layers = {5, 6};
  Ranks ranks({wrong, wrong});
  REQUIRE_FALSE(ranks.opened.ok());
  CHECK(ranks.opened.status().message().find("--stage-layers has 11 layers") == 0);
  CHECK(ranks.codes() == std::vector<Code>{Code::kCancelled});
}

TEST_CASE("ranks with different models are told") {
  Ranks ranks({flags_of(2), flags_of(2)}, "opt-350m");
  REQUIRE_FALSE(ranks.opened.ok());
  CHECK(ranks.opened.status().code() == Code::kInvalidArgument);
  CHECK(ranks.opened.status().message().find("has another model") != std::string::npos);
  CHECK(ranks.codes() == std::vector<Code>{Code::kCancelled});
}

TEST_CASE("a runtime of one rank does not take --stages") {
  CHECK(Runtime::open("opt-125m", flags_of(2), {}).status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace spillway::staged_runtime_test
