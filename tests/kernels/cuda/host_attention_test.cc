// `--attention host`: that the cache stays in host memory, and only the step's own rows cross the
// link. (That the tokens are the same: tests/endtoend/tiers_test.cc.)
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "server/runtime.h"
#include "server/start_plan.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden.h"
#include "tests/support/temp_directory.h"

namespace spillway::host_attention_test {
namespace {

using test::CollectingSink;

EngineFlags cache_on_host(const char* attention) {
  EngineFlags flags;
  flags.device = "cuda";
  flags.format = Format::kF32;
  flags.weights = {100, 0, 0};
  flags.kv = {0, 100, 0};
  flags.activations = {100, 0, 0};
  flags.attention = attention;
  flags.block = 5;
  flags.threads = 2;
  flags.host_memory_bytes = flags.device_memory_bytes = uint64_t{1} << 30;
  return flags;
}

void run(Runtime& runtime) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 5; ++i) {
    Request request;
    request.prompt = std::vector<int32_t>(static_cast<size_t>(9 + i), 7 + i);
    request.max_tokens = 6;
    request.ignore_eos = true;
    sinks.push_back(std::make_shared<CollectingSink>());
    REQUIRE(runtime.scheduler().submit(request, sinks.back()).ok());
  }
  for (const auto& sink : sinks) REQUIRE(sink->wait().status.ok());
}

// The sweeps without a prompt.
std::vector<SweepWork> decode_sweeps(const std::string& checkpoint, const char* attention,
                                     ModelShape* shape) {
  RuntimeOptions options;
  options.log = std::make_shared<SweepLog>();
  const auto runtime = Runtime::open(checkpoint, cache_on_host(attention), options).value();
  *shape = runtime->shape();
  run(*runtime);
  std::vector<SweepWork> found;
  for (const SweepWork& work : options.log->take()) {
    if (work.prompts == 0) found.push_back(work);
  }
  return found;
}

TEST_CASE("with attention on the host only the rows of the step cross the link") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  ModelShape shape;
  const auto by_host = decode_sweeps(checkpoint, "host", &shape);
  REQUIRE_FALSE(by_host.empty());
  const auto row = static_cast<uint64_t>(2 * shape.kv_heads * shape.head_size) * sizeof(float);
  const auto layers = static_cast<uint64_t>(shape.layers);
  for (const SweepWork& work : by_host) {
    const uint64_t steps = static_cast<uint64_t>(work.tokens()) * layers;
    CHECK(work.to_host_bytes == steps * static_cast<uint64_t>(shape.qkv_width()) * 4);
    CHECK(work.to_device_bytes == steps * static_cast<uint64_t>(shape.query_width()) * 4);
    CHECK(work.host_attended_bytes == static_cast<uint64_t>(work.cached_rows) * layers * row);
  }
  const auto by_device = decode_sweeps(checkpoint, "device", &shape);
  REQUIRE_FALSE(by_device.empty());
  for (const SweepWork& work : by_device) {
    CHECK(work.host_attended_bytes == 0);
    // All cached rows but the step's own, by whole blocks.
    CHECK(work.to_device_bytes >=
          static_cast<uint64_t>(work.cached_rows - static_cast<double>(work.tokens())) * layers *
              row);
  }
}

TEST_CASE("attention on the host has a track of its own, and the plan says where it runs") {
  const test::TemporaryCache cache;
  const TempDirectory directory;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  EngineFlags flags = cache_on_host("host");
  flags.trace = directory.path() + "/trace.json";
  {
    const auto runtime = Runtime::open(checkpoint, flags, {}).value();
    CHECK(runtime->plan().host_attention());
    // Two micro-batches at least, so that device and host work at the same time.
    CHECK(runtime->plan().micro_batch_sequences() == 3);
    CHECK(plan_line(*runtime).find("by the CPU") != std::string::npos);
    run(*runtime);
  }
  std::ifstream file(flags.trace);
  const nlohmann::json trace = nlohmann::json::parse(file);
  int64_t track = -1;
  int spans = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "M" && event["args"].value("name", "") == "host attention") {
      track = event["tid"];
    }
    if (event["ph"] == "X" && event["tid"] == track) {
      CHECK(event["name"] == "attention");
      ++spans;
    }
  }
  CHECK(spans > 0);
}

TEST_CASE("without a cache in host memory there is nothing for the host to attend to") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  EngineFlags flags = cache_on_host("host");
  flags.kv = {100, 0, 0};
  const auto runtime = Runtime::open(checkpoint, flags, {}).value();
  CHECK_FALSE(runtime->plan().host_attention());
  CHECK(runtime->plan().micro_batch_sequences() == 0);
  run(*runtime);
}

TEST_CASE("without a cache folder there is no profile, and nothing is wrong with that") {
  // Which folder that is, the environment says.
  std::map<std::string, std::string> before;
  for (const char* name : {"SPILLWAY_CACHE", "XDG_CACHE_HOME", "HOME"}) {
    if (const char* set = std::getenv(name)) before[name] = set;
    ::unsetenv(name);
  }
  EngineFlags flags = cache_on_host("auto");
  flags.dummy_weights = true;
  flags.device_memory_bytes = uint64_t{3} << 30;
  std::string said;
  RuntimeOptions options;
  options.say = [&](const std::string& line) { said += line + "\n"; };
  const auto started = open_planned("opt-125m", flags, options, {{20, 10, 5}});
  for (const auto& [name, value] : before) ::setenv(name.c_str(), value.c_str(), 1);
  INFO(said << started.status().message());
  REQUIRE(started.ok());
  CHECK(said.find("warning") == std::string::npos);
  CHECK_FALSE(started->runtime->plan().host_attention());
}

}  // namespace
}  // namespace spillway::host_attention_test
