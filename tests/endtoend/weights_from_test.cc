// --weights-from checkpoint: the tokens of the packed file, wherever the weights lie, and no packed
// file. cuda_test runs it on the emulated device, too.
#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/golden.h"
#include "tests/support/places.h"
#include "tests/support/random_data.h"
#include "tests/support/skip.h"
#include "tests/support/test_devices.h"

namespace spillway::weights_from_test {
namespace {

namespace fs = std::filesystem;

std::string checkpoint(const std::string& name) {
  return test::source_directory() + "/tests/golden/checkpoints/" + name + "/safetensors";
}

EngineFlags flags_for(const char* device, Format format, const TierPercent& weights) {
  EngineFlags flags;
  flags.device = device;
  flags.format = format;
  flags.weights = weights;
  flags.threads = 2;
  flags.block = 5;
  flags.host_memory_bytes = flags.device_memory_bytes = uint64_t{1} << 30;
  return flags;
}

std::vector<Request> make_requests(const ModelShape& shape) {
  std::mt19937_64 random(20261125);
  std::vector<Request> requests(8);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = test::random_prompt(random, 30, shape.vocabulary);
    requests[i].max_tokens = 6;
    requests[i].ignore_eos = true;
    requests[i].sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    requests[i].sampling.seed = i;
  }
  test::ask_logprobs(&requests);
  return requests;
}

std::unique_ptr<Runtime> open(const std::string& model, const EngineFlags& flags) {
  auto runtime = Runtime::open(model, flags, {});
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  return std::move(runtime).value();
}

void check_tokens(const std::string& name, const char* device, Format format) {
  INFO(name << " on " << device);
  const test::TemporaryCache cache;
  const std::string model = checkpoint(name);
  std::vector<Request> requests;
  test::Answers expected;
  double tolerance = 0;
  {
    const auto runtime = open(model, flags_for(device, format, {100, 0, 0}));
    requests = make_requests(runtime->shape());
    expected = test::run_together(*runtime, requests);
    tolerance = test::placement_tolerance(*runtime, format, runtime->plan().kv_format());
  }
  const test::TemporaryCache another;
  for (const TierPercent& weights : {TierPercent{100, 0, 0}, {0, 0, 100}, {30, 30, 40}}) {
    for (const bool overlap : {true, false}) {
      INFO(weights[0] << "," << weights[1] << "," << weights[2] << (overlap ? "" : ", no overlap"));
      EngineFlags flags = flags_for(device, format, weights);
      flags.weights_from = "checkpoint";
      flags.no_overlap = !overlap;
      const auto runtime = open(model, flags);
      CHECK((runtime->plan().weights.disk > 0) == (weights[2] > 0));
      if (weights[2] > 0) CHECK(runtime->plan().weights_files.at(0).ends_with(".safetensors"));
      CHECK(test::difference(requests, expected, test::run_together(*runtime, requests),
                             tolerance) == "");
    }
  }
  for (const auto& entry : fs::directory_iterator(another.path())) {
    CHECK(entry.path().extension() != ".spill");
  }
}

TEST_CASE("weights of a checkpoint as it lies give the tokens of the packed file") {
  check_tokens("head_80_bf16", "cpu", Format::kBF16);
  check_tokens("llama_yarn_bf16", "cpu", Format::kBF16);
  check_tokens("head_20_f16_sharded", "cpu", Format::kF16);
  check_tokens("qwen2", "cpu", Format::kF16);
}

TEST_CASE("weights of a checkpoint as it lies on a device with memory of its own", "[gpu][slow]") {
  if (!test::has_accelerator()) return test::skip("no CUDA device");
  test::shuffle_accelerator(3);
  check_tokens("llama_yarn_bf16", "cuda", Format::kBF16);
  check_tokens("head_20_f16_sharded", "cuda", Format::kF16);
}

}  // namespace
}  // namespace spillway::weights_from_test
