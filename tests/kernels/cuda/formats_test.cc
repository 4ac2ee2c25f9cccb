// The formats that a device with memory of its own computes in.
#include <catch2/catch.hpp>

#include "scheduler/planning/model_to_plan.h"
#include "scheduler/planning/profile_traits.h"
#include "server/runtime.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/golden.h"
#include "tests/support/hardware.h"

namespace spillway::formats_test {
namespace {

Result<std::unique_ptr<Runtime>> open(const std::string& variant, const RuntimeOptions& options,
                                      EngineFlags flags = {}) {
  flags.device = "cuda";
  flags.threads = 2;
  flags.host_memory_bytes = flags.device_memory_bytes = uint64_t{1} << 30;
  return Runtime::open(test::read_golden(variant).checkpoints.front(), flags, options);
}

std::vector<int32_t> tokens_of(Runtime& runtime) {
  Request request;
  request.prompt = {5, 6, 7, 9, 11};
  request.max_tokens = 5;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  const auto sink = std::make_shared<test::CollectingSink>();
  REQUIRE(runtime.scheduler().submit(request, sink).ok());
  REQUIRE(sink->wait().status.ok());
  CHECK(sink->tokens.size() == 5);
  return sink->tokens;
}

TEST_CASE("on a device with memory of its own weights keep the checkpoint's format") {
  const test::TemporaryCache cache;
  const struct {
    const char* variant;
    Format format;
  } cases[] = {{"head_20_f16_sharded", Format::kF16},
               {"head_80_bf16", Format::kBF16},
               {"pre_ln_relu", Format::kF32}};
  for (const auto& c : cases) {
    INFO(c.variant);
    const auto runtime = open(c.variant, {}).value();
    CHECK(runtime->plan().format == c.format);
    CHECK(runtime->plan().kv_format() == c.format);
    // Also where the CPU attends.
    EngineFlags by_host;
    by_host.kv = {0, 100, 0};
    by_host.attention = "host";
    const auto tokens = tokens_of(*runtime);
    CHECK(tokens_of(*open(c.variant, {}, by_host).value()) == tokens);
    // A plan for such a device, made elsewhere, is of the same weights.
    const HardwareProfile hardware = test::sample_hardware(true);
    const std::string checkpoint = test::read_golden(c.variant).checkpoints.front();
    const DeviceTraits traits = traits_of(hardware).value();
    CHECK(open_model_to_plan(checkpoint, {}, traits, {}).value().table->format == c.format);
  }
}

TEST_CASE("4-bit weights are computed with in bf16, in f16 where tensor cores have no bf16") {
  const test::TemporaryCache cache;
  for (const int major : {7, 8, 9}) {
    INFO("compute capability " << major << ".5");
    fake_cudart::set_capability(major, 5);
    const auto device = open_cuda_device(0).value();
    CHECK(device->native_bf16() == (major >= 8));
    CHECK(device->activation_dtype(Format::kQ4) == (major >= 8 ? DType::kBF16 : DType::kF16));
    CHECK(device->activation_dtype(Format::kBF16) == DType::kBF16);
    EngineFlags flags;
    flags.format = Format::kQ4;
    flags.weights = {50, 50, 0};
    (void)tokens_of(*open("pre_ln_relu", {}, flags).value());
  }
  fake_cudart::set_capability(9);
}

}  // namespace
}  // namespace spillway::formats_test
