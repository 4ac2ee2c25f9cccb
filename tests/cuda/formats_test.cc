// The formats that a device with memory of its own computes in.
#include <catch2/catch.hpp>

#include "server/runtime.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden.h"
#include "tests/support/hardware.h"

namespace spillway {
namespace {

Result<std::unique_ptr<Runtime>> open(const std::string& variant, const RuntimeOptions& options) {
  EngineFlags flags;
  flags.device = "cuda";
  flags.host_memory_bytes = flags.device_memory_bytes = uint64_t{1} << 30;
  return Runtime::open(test::read_golden(variant).checkpoints.front(), flags, options);
}

TEST_CASE("on a device with memory of its own weights keep the checkpoint's format") {
  const test::TemporaryCache cache;
  const struct {
    const char* variant;
    DType format;
  } cases[] = {{"head_20_f16_sharded", DType::kF16},
               {"head_80_bf16", DType::kBF16},
               {"pre_ln_relu", DType::kF32}};
  for (const auto& c : cases) {
    INFO(c.variant);
    const auto runtime = open(c.variant, {}).value();
    CHECK(runtime->plan().format == c.format);
    CHECK(runtime->plan().kv_format == c.format);
    Request request;
    request.prompt = {5, 6, 7};
    request.max_tokens = 3;
    request.ignore_eos = true;
    const auto sink = std::make_shared<test::CollectingSink>();
    REQUIRE(runtime->scheduler().submit(request, sink).ok());
    CHECK(sink->wait().status.ok());
    CHECK(sink->tokens.size() == 3);
    // A plan for such a device, made elsewhere, is of the same weights.
    const HardwareProfile hardware = test::sample_hardware(true);
    RuntimeOptions on_paper;
    on_paper.plan_only = true;
    on_paper.hardware = &hardware;
    CHECK(open(c.variant, on_paper).value()->plan().format == c.format);
  }
}

}  // namespace
}  // namespace spillway
