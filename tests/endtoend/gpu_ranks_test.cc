// GPUs that share every layer of a model give the tokens of one that has it whole, whatever is
// placed where: in cuda_test, on emulated devices over a fake NCCL.
#include <catch2/catch.hpp>
#include <string>

#include "server/ranked_runtime.h"
#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/golden.h"
#include "tests/support/hardware.h"
#include "tests/support/skip.h"
#include "tests/support/staged_runtime.h"
#include "tests/support/test_devices.h"
#include "tests/support/tier_setups.h"

namespace spillway::gpu_ranks_test {
namespace {

using test::Answers;
using test::TierSetup;

Answers run(const std::string& checkpoint, const EngineFlags& flags,
            std::vector<Request>* requests) {
  const auto runtime = test::open_runtime(checkpoint, flags);
  if (requests->empty()) *requests = test::tier_requests(runtime->shape(), 20261128);
  return test::run_together(*runtime, *requests);
}

void check_on_gpus(const char* variant, Format format, Format kv_format) {
  if (!test::has_accelerator()) return test::skip("no CUDA device");
  if (!test::emulated()) return test::skip("several GPUs are only emulated");
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden(variant).checkpoints.front();
  const size_t before = test::accelerator_leaks();
  std::vector<Request> requests;
  const Answers expected =
      run(checkpoint, test::tier_flags("cuda", format, kv_format, {}), &requests);
  uint64_t seed = 1;  // Of the order of streams
  for (const TierSetup& setup : test::tier_setups()) {
    INFO(variant << ", weights " << format_name(format) << ", " << setup.name << ", seed " << seed);
    test::shuffle_accelerator(seed++);
    EngineFlags flags = test::tier_flags("cuda", format, kv_format, setup);
    flags.gpus = {1, 0};
    flags.device_memory_bytes = uint64_t{2} << 30;  // NCCL has its part of it.
    CHECK(test::difference(requests, expected, run(checkpoint, flags, &requests), 0) == "");
  }
  CHECK(test::accelerator_leaks() == before);
}

TEST_CASE("GPUs give the tokens of one, float32", "[slow]") {
  check_on_gpus("post_ln_projected", Format::kF32, Format::kF32);
}

TEST_CASE("GPUs give the tokens of one, narrow and quantised", "[slow]") {
  check_on_gpus("llama3", Format::kBF16, Format::kF16);
  check_on_gpus("pre_ln_relu", Format::kQ4, Format::kQ4);
}

// As one GPU does by a plan that was searched for.
TEST_CASE("GPUs of a stage leave attention to the CPU where its profile says that this pays") {
  if (!test::has_accelerator()) return test::skip("no CUDA device");
  if (!test::emulated()) return test::skip("several GPUs are only emulated");
  const test::TemporaryCache cache;
  EngineFlags flags = test::tier_flags("cuda", Format::kBF16, Format::kF16,
                                       {.name = "on the host", .kv = {0, 100, 0}});
  flags.gpus = {0, 1};
  flags.device_memory_bytes = uint64_t{2} << 30;
  flags.attention = "auto";
  HardwareProfile profile = test::sample_hardware(true);
  REQUIRE(profile.link);
  for (const bool pays : {false, true}) {
    INFO(pays);
    profile.host.decode_attention.value = profile.link->to_device.value * (pays ? 2 : 0.5);
    RanksHere ranks =
        RanksHere::open(test::read_golden("llama3").checkpoints.front(), flags, {}).value();
    REQUIRE(ranks.make_plans({}, {}, &profile).ok());
    REQUIRE(ranks.plans().size() == 2);
    for (const Plan& plan : ranks.plans()) CHECK(plan.host_attention() == pays);
  }
}

// Two stages of two GPUs each, which have NCCL communicators of their own.
TEST_CASE("stages of GPUs give the tokens of one", "[slow]") {
  if (!test::has_accelerator()) return test::skip("no CUDA device");
  if (!test::emulated()) return test::skip("several GPUs are only emulated");
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("llama3").checkpoints.front();
  std::vector<Request> requests;
  const Answers expected =
      run(checkpoint, test::tier_flags("cuda", Format::kBF16, Format::kF16, {}), &requests);
  EngineFlags flags = test::tier_flags("cuda", Format::kBF16, Format::kF16,
                                       {.name = "mixed",
                                        .weights = {20, 30, 50},
                                        .kv = {30, 30, 40},
                                        .activations = {10, 40, 50},
                                        .micro_batch = 2});
  flags.stages = 2;
  flags.gpus = {3, 0, 2, 1};
  flags.device_memory_bytes = uint64_t{2} << 30;
  test::StagedRuntime stages(checkpoint, flags);
  const Answers found = test::run_together(stages.runtime(), requests);
  CHECK(test::difference(requests, expected, found, 0) == "");
  CHECK(stages.end().ok());
}

}  // namespace
}  // namespace spillway::gpu_ranks_test
