// `spillway bench` on the emulated device: it measures the ceilings of a device with memory of its
// own, and counts what goes over the link. Its rates mean nothing here.
#include "server/commands/bench.h"

#include <catch2/catch.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/golden.h"

namespace spillway {
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

TEST_CASE("bench measures a device with memory of its own and the link to it") {
  const test::TemporaryCache place;
  const std::string model = test::read_golden("pre_ln_relu").checkpoints.front();
  EngineFlags engine;
  engine.device = "cuda";
  engine.format = DType::kBF16;
  engine.weights = {0, 100, 0};
  engine.kv = {50, 50, 0};
  engine.host_memory_bytes = engine.device_memory_bytes = uint64_t{1} << 30;
  const BenchFlags flags{.prompt_tokens = 5, .new_tokens = 4, .sequences = 3, .json = true};
  json result;
  {
    const Captured out(std::cout), log(std::cerr);
    const int status = run_bench(flags, engine, model);
    INFO(log.text());
    REQUIRE(status == 0);
    result = json::parse(out.text());
  }
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
  CHECK(result["peak_device_bytes"].get<uint64_t>() > weights / 100);
}

}  // namespace
}  // namespace spillway
