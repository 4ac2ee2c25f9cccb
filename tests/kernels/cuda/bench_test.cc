// `spillway bench` on the emulated device: it measures the ceilings of a device with memory of its
// own, and counts what goes over the link. Its rates mean nothing here.
#include "server/cli/bench/bench.h"

#include <catch2/catch.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/decoder_layer.h"
#include "server/cli/bench/bench_ceilings.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/golden.h"

namespace spillway::cuda_bench_test {
namespace {

using nlohmann::json;

// What a program part prints while this lives.
class Captured {
 public:
  explicit Captured(std::ostream& stream) : stream_(stream), before_(stream.rdbuf(text_.rdbuf())) {}
  ~Captured() { stream_.rdbuf(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostream& stream_;
  std::ostringstream text_;
  std::streambuf* before_;
};

struct Ran {
  int status = 0;
  std::string out, log;
};

Ran run(const BenchFlags& flags, const EngineFlags& engine) {
  const std::string model = test::read_golden("pre_ln_relu").checkpoints.front();
  const Captured out(std::cout), log(std::cerr);
  const int status = run_bench(flags, engine, model);
  return {status, out.text(), log.text()};
}

TEST_CASE("bench measures a device with memory of its own and the link to it", "[slow]") {
  const test::TemporaryCache place;
  EngineFlags engine;
  engine.device = "cuda";
  engine.format = Format::kBF16;
  engine.weights = {0, 100, 0};
  engine.kv = {50, 50, 0};
  engine.host_memory_bytes = engine.device_memory_bytes = uint64_t{1} << 30;
  const BenchFlags flags{.prompt_tokens = 5, .new_tokens = 4, .sequences = 3, .json = true};
  const Ran ran = run(flags, engine);
  INFO(ran.log);
  REQUIRE(ran.status == 0);
  const json result = json::parse(ran.out);
  CHECK(result["plan"]["device"] == "cuda");
  CHECK(result["plan"]["weights"] == json({0, 100, 0}));
  const json& rates = result["hardware"];
  for (const char* name : {"memory_bytes_per_second", "host_to_device_bytes_per_second",
                           "device_to_host_bytes_per_second", "both_directions_bytes_per_second"}) {
    INFO(name);
    CHECK(rates[name].get<double>() > 0);
  }
  // Every decode sweep brings all the weights, and half of the cache.
  const json& decode = result["time_by_cause"]["decode"];
  const auto weights = result["bytes_by_tier"]["weights"]["host"].get<uint64_t>();
  CHECK(decode["host_to_device_bytes"].get<uint64_t>() >=
        weights * decode["sweeps"].get<uint64_t>());
  CHECK(decode["device_to_host_bytes"].get<uint64_t>() > 0);
  CHECK(result["bound"]["host_to_device_seconds"].get<double>() > 0);
  CHECK(result["efficiency"].get<double>() > 0);
  // Attention at its own rate, not at that of the best product.
  double best = 0;
  for (const json& matrix : rates["matrix"]) {
    best = std::max(best, matrix["own_flops_per_second"].get<double>());
  }
  CHECK(rates["attention_flops_per_second"].get<double>() > 0);
  CHECK(rates["attention_flops_per_second"].get<double>() != best);
  // Of the run: what its ceilings were measured with is not in it, nor what others take.
  const auto peak = result["peak_device_bytes"].get<uint64_t>();
  CHECK(peak > weights / 100);
  CHECK(peak < uint64_t{128} << 20);
  CHECK(result["other_device_bytes"] == 0);
}

TEST_CASE("products are measured with as many rows as a layer gives them at once") {
  BenchFlags flags{.prompt_tokens = 512, .new_tokens = 32, .sequences = 144};
  Plan plan;
  plan.discrete = true;
  plan.scheduling.block_sequences_max = 144;
  plan.engine.micro_batch_tokens = 1024;  // Goes through a layer in two chunks.
  CHECK(ceiling_rows(flags, plan) == std::vector<int64_t>{144, kLayerChunkRows});
  plan.engine.micro_batch_tokens = 100;
  CHECK(ceiling_rows(flags, plan) == std::vector<int64_t>{100});
  flags.sequences = 3;
  flags.prompt_tokens = 20;
  CHECK(ceiling_rows(flags, plan) == std::vector<int64_t>{3, 60});
}

TEST_CASE("bench without the device memory to measure ceilings with ends before the run") {
  const test::TemporaryCache place;
  EngineFlags engine;
  engine.device = "cuda";
  engine.format = Format::kBF16;
  engine.block = 3;
  engine.host_memory_bytes = engine.device_memory_bytes = uint64_t{1} << 30;
  const BenchFlags flags{.prompt_tokens = 5, .new_tokens = 2, .sequences = 3, .json = true};
  fake_cudart::limit_memory(size_t{192} << 20);
  const Ran ran = run(flags, engine);
  INFO(ran.log);
  CHECK(ran.status == 1);
  CHECK(ran.out.empty());
  CHECK_THAT(ran.log, Catch::Contains("Measuring this machine's ceilings"));
  CHECK_THAT(ran.log, !Catch::Contains("Running"));
  const auto runtime =
      Runtime::open(test::read_golden("pre_ln_relu").checkpoints.front(), engine, {}).value();
  const Status status = measure_ceilings(flags, *runtime, 0, false).status();
  fake_cudart::limit_memory(size_t{1} << 40);
  CHECK(status.code() == Code::kCapacity);
  CHECK_THAT(std::string(status.message()), Catch::Contains("measuring matrix products takes"));
  CHECK_THAT(std::string(status.message()), Catch::Contains("left beside the model"));
}

}  // namespace
}  // namespace spillway::cuda_bench_test
