// Plans for random budgets of a device with memory of its own are carried out on the emulated one,
// which has no more memory than the budget.
#include <catch2/catch.hpp>
#include <random>

#include "scheduler/planning/memory_budget.h"
#include "scheduler/planning/plan_search.h"
#include "server/runtime.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/golden.h"
#include "tests/support/hardware.h"
#include "tests/support/random_data.h"

namespace spillway::cuda_plan_fits_test {
namespace {

using test::CollectingSink;

// Of the process's share of a budget what the ops' scratch really takes of the emulated device:
// 2.1 MB, measured. Plans for this model are about 1 MB.
constexpr uint64_t kScratchBytes = 2'200'000;

struct Budgets {
  uint64_t device, host;
};

PlanQuestion question(const std::string& checkpoint, const HardwareProfile& hardware,
                      const Budgets& budgets, std::mt19937_64& random) {
  PlanQuestion asked;
  asked.model = checkpoint;
  asked.hardware = &hardware;
  asked.flags.format = Format::kBF16;
  asked.flags.device_memory_bytes = budgets.device;
  asked.flags.host_memory_bytes = budgets.host;
  asked.flags.threads = 2;
  asked.workload = {{static_cast<int64_t>(1 + random() % 30),
                     static_cast<int64_t>(1 + random() % 6),
                     static_cast<int64_t>(1 + random() % 1000)}};
  return asked;
}

void carry_out(const PlanQuestion& asked, const CostedChoice& found, std::mt19937_64& random) {
  EngineFlags flags = found.flags;
  flags.device = "cuda";
  RuntimeOptions options;
  options.wishes.prompt_tokens = asked.workload[0].prompt_tokens;
  options.wishes.new_tokens = asked.workload[0].new_tokens;
  auto opened = Runtime::open(asked.model, flags, options);
  INFO(opened.status().message());
  REQUIRE(opened.ok());
  Runtime& runtime = *opened.value();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    Request request;
    request.prompt = test::random_prompt(
        random, static_cast<uint64_t>(asked.workload[0].prompt_tokens), runtime.shape().vocabulary);
    request.max_tokens = static_cast<int32_t>(asked.workload[0].new_tokens);
    request.ignore_eos = true;
    sinks.push_back(std::make_shared<CollectingSink>());
    REQUIRE(runtime.scheduler().submit(request, sinks.back()).ok());
  }
  for (const auto& sink : sinks) {
    const Finish finish = sink->wait();
    INFO(finish.status.message());
    REQUIRE(finish.status.ok());
  }
}

TEST_CASE("plans for a device with memory of its own run within its budget") {
  constexpr uint64_t kSeed = 20261122;
  std::mt19937_64 random(kSeed);
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  const HardwareProfile hardware = test::sample_hardware(true);
  const size_t before = fake_cudart::leaks();
  int fitting = 0, away = 0;
  for (int round = 0; round < 12; ++round) {
    const Budgets budgets = {kDeviceProcessBytes + 850'000 + random() % 300'000,
                             kProcessBytes + 50'000 + random() % 5'000'000};
    const PlanQuestion asked = question(checkpoint, hardware, budgets, random);
    INFO("seed " << kSeed << ", round " << round << ", device " << budgets.device << ", host "
                 << budgets.host);
    const auto found = find_plan(asked);
    if (!found.ok()) {
      CHECK(found.status().code() == Code::kInfeasible);
      continue;
    }
    ++fitting;
    const Plan& plan = *found->plan;
    if (plan.weights.device + plan.kv.device <
        plan.weights.host + plan.weights.disk + plan.kv.host + plan.kv.disk) {
      ++away;
    }
    fake_cudart::limit_memory(budgets.device - kDeviceProcessBytes + kScratchBytes);
    carry_out(asked, found.value(), random);
    fake_cudart::limit_memory(size_t{1} << 40);
  }
  CHECK(fitting >= 6);
  CHECK(away >= 1);
  CHECK(fake_cudart::leaks() == before);
}

}  // namespace
}  // namespace spillway::cuda_plan_fits_test
