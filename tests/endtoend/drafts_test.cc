// `--draft ngram` changes no token and no log-probability: in every format of weights and cache, on
// every tier, with attention on either processor, in any block. Two programs run it: cuda_test on
// the emulated device, and endtoend_test on the CPU, or on a GPU where there is one (in narrow
// formats to within rounding: answers.h).
#include <catch2/catch.hpp>
#include <random>
#include <string_view>

#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/golden.h"
#include "tests/support/test_devices.h"

namespace spillway::drafts_test {
namespace {

using test::Answers;

constexpr TierPercent kAllDevice = {100, 0, 0};

struct Setup {
  const char* name = "";
  TierPercent weights = kAllDevice, kv = kAllDevice, activations = kAllDevice;
  int64_t block = 2;
  std::optional<int64_t> micro_batch = {};
  bool overlap = true;
  const char* attention = "device";
};

std::vector<Setup> setups() {
  return {
      {.name = "in memory, one sequence", .block = 1},
      {.name = "in memory, a few", .block = 3},
      {.name = "weights on disk", .weights = {0, 0, 100}},
      {.name = "KV on disk", .kv = {0, 0, 100}, .block = 1},
      {.name = "KV on disk, no overlap", .kv = {30, 0, 70}, .overlap = false},
      {.name = "mixed, small micro-batches",
       .weights = {20, 30, 50},
       .kv = {30, 40, 30},
       .activations = {50, 25, 25},
       .micro_batch = 1},
      {.name = "KV on host, the CPU attends", .kv = {0, 100, 0}, .attention = "host"},
      {.name = "mixed, the CPU attends",
       .kv = {30, 40, 30},
       .block = 4,
       .micro_batch = 2,
       .attention = "host"},
  };
}

std::unique_ptr<Runtime> open(const std::string& checkpoint, Format format, Format kv_format,
                              const Setup& setup, int64_t draft_tokens, bool int8 = false) {
  EngineFlags flags;
  flags.device = test::has_accelerator() ? "cuda" : "cpu";
  flags.format = format;
  flags.kv_format = kv_format;
  flags.weights = setup.weights;
  flags.kv = setup.kv;
  flags.activations = setup.activations;
  flags.block = setup.block;
  flags.micro_batch = setup.micro_batch;
  flags.no_overlap = !setup.overlap;
  if (test::has_accelerator()) flags.attention = setup.attention;
  if (int8) flags.quantized_compute = "int8";
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  if (test::has_accelerator()) flags.device_memory_bytes = uint64_t{1} << 30;
  if (draft_tokens > 0) {
    flags.draft = "ngram";
    flags.draft_tokens = draft_tokens;
  }
  return test::open_runtime(checkpoint, flags);
}

// Prompts of two or three words again and again, greedy and sampled. A bias keeps the answers to
// these words, so that drafts come true.
std::vector<Request> make_requests(const ModelShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&] {
    return static_cast<int32_t>(random() % static_cast<uint64_t>(shape.vocabulary));
  };
  std::vector<Request> requests(test::thorough() ? 16 : 6);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    const std::vector<int32_t> words = {draw(), draw(), draw()};
    const uint64_t length = 6 + random() % 45;
    for (uint64_t t = 0; t < length; ++t) {
      request.prompt.push_back(random() % 10 == 0 ? draw() : words[t % (2 + i % 2)]);
    }
    request.max_tokens = static_cast<int32_t>(2 + random() % 40);
    request.ignore_eos = true;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = i;
    if (i % 3 == 0) request.sampling.logit_bias = {{words[0], 6.0f}, {words[1], 6.0f}};
    if (i % 3 == 1) request.sampling.top_k = 2;  // Sampled on the device
    if (i % 5 == 4) request.sampling.presence_penalty = 0.2f;
    if (i % 4 == 3) {
      request.kv.kind = KvRuleKind::kH2o;
      request.kv.heavy = request.kv.recent = KvAmount{7, 0};
    }
  }
  return requests;
}

// In all setups, or where the device is emulated in one of `part`'s four parts of them.
void check(const std::string& variant, Format format, Format kv_format, uint64_t part,
           bool int8 = false) {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden(variant).checkpoints.front();
  INFO(variant << ", weights " << format_name(format) << ", KV " << format_name(kv_format));
  std::vector<Request> requests;
  Answers expected;
  double tolerance = 0;
  {
    const auto runtime = open(checkpoint, format, kv_format, {.block = 1}, 0, int8);
    requests = make_requests(runtime->shape(), 20261127);
    tolerance = test::placement_tolerance(*runtime, format, kv_format);
    test::ask_logprobs(&requests);
    // Tokens that are sampled from without their log-probabilities may be sampled on the device.
    for (size_t i = 1; i < requests.size(); i += 2) requests[i].logprobs = tolerance > 0 ? 8 : -1;
    expected = test::run_together(*runtime, requests);
    CHECK(runtime->scheduler().stats().drafts.drafts == 0);
  }
  uint64_t seed = 1;  // Of the order of streams
  for (const Setup& setup : setups()) {
    test::shuffle_accelerator(seed++);
    INFO(setup.name);
    if (seed % 4 != part && !test::thorough()) continue;
    // The CPU sums in another order than the device.
    const bool by_host = std::string_view(setup.attention) == "host" && test::has_accelerator();
    Answers of_host;
    if (by_host) {
      const auto plain = open(checkpoint, format, kv_format, setup, 0, int8);
      of_host = test::run_together(*plain, requests);
    }
    const Answers& wanted = by_host ? of_host : expected;
    const auto runtime = open(checkpoint, format, kv_format, setup, 1 + 3 * (seed % 3), int8);
    const Answers found = test::run_together(*runtime, requests);
    CHECK(test::difference(requests, wanted, found, tolerance) == "");
    for (size_t i = 0; tolerance == 0 && i < requests.size(); ++i) {
      INFO("request " << i);
      REQUIRE(found[i].logprobs.size() == wanted[i].logprobs.size());
      for (size_t t = 0; t < found[i].logprobs.size(); ++t) {
        REQUIRE(found[i].logprobs[t].logprob == wanted[i].logprobs[t].logprob);
        REQUIRE(found[i].logprobs[t].best == wanted[i].logprobs[t].best);
      }
    }
    const DraftCounts drafts = runtime->scheduler().stats().drafts;
    // The six requests of an emulated device need not repeat themselves in every model.
    if (test::thorough()) CHECK(drafts.accepted > 0);
    CHECK(drafts.drafted > 0);
    CHECK(drafts.accepted < drafts.drafted);
    CHECK(runtime->scheduler().stats().kv_bytes_used == 0);
  }
}

TEST_CASE("drafts change no token, float32", "[gpu]") {
  check("pre_ln_relu", Format::kF32, Format::kF32, 2);
}

TEST_CASE("drafts change no token, narrow formats", "[gpu][slow]") {
  check("post_ln_projected", Format::kBF16, Format::kF16, 1);
  check("llama3", Format::kF16, Format::kF16, 3);
}

TEST_CASE("drafts change no token, rotary positions that follow the length", "[gpu][slow]") {
  check("llama_dynamic", Format::kF32, Format::kF32, 0);
  check("phi3_longrope", Format::kF32, Format::kBF16, 2);
}

TEST_CASE("drafts change no token, 4 bits", "[gpu][slow]") {
  check("pre_ln_relu", Format::kQ4, Format::kQ4, 1);
  check("qwen3", Format::kQ8, Format::kF32, 3);
}

TEST_CASE("drafts change no token, products in 8 bits", "[slow]") {
  if (test::has_accelerator()) return;  // The CPU's alone
  check("pre_ln_relu", Format::kQ4, Format::kF16, 0, true);
}

TEST_CASE("a model with sliding windows has no drafts") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("mistral_window").checkpoints.front();
  const auto runtime = open(checkpoint, Format::kF32, Format::kF32, {.block = 1}, 4);
  Request request;
  request.prompt = std::vector<int32_t>(30, 5);
  request.max_tokens = 20;
  request.ignore_eos = true;
  (void)test::run_together(*runtime, {request});
  CHECK(runtime->scheduler().stats().drafts.drafts == 0);
}

}  // namespace
}  // namespace spillway::drafts_test
