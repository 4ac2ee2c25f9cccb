// A whole Runtime on a device with memory of its own: the tokens of the CPU device in float32, and
// the same tokens from every placement over device, host and disk (of a real device in narrow
// formats: the same to within rounding). Two programs run it: cuda_test on the emulated device,
// whose copies and kernels of different streams happen in any order, and endtoend_test on a real
// one, where there is one.
#include <catch2/catch.hpp>
#include <random>

#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"
#include "tests/support/skip.h"
#include "tests/support/test_devices.h"

namespace spillway::tiers_test {
namespace {

using test::Answers;

constexpr TierPercent kAllDevice = {100, 0, 0};

struct Setup {
  const char* name = "";
  TierPercent weights = kAllDevice, kv = kAllDevice, activations = kAllDevice;
  bool overlap = true;
  std::optional<int64_t> micro_batch = {};
  const char* attention = "device";  // Over KV on host
  int64_t prefill_tokens = 0;        // 0: every prompt goes whole
};

std::vector<Setup> setups() {
  return {
      {.name = "weights on host", .weights = {0, 100, 0}},
      {.name = "weights on disk", .weights = {0, 0, 100}},
      {.name = "KV on host", .kv = {0, 100, 0}},
      {.name = "KV on disk", .kv = {0, 0, 100}, .micro_batch = 2},
      {.name = "activations on host", .activations = {0, 100, 0}, .micro_batch = 2},
      {.name = "activations on disk", .activations = {0, 0, 100}, .micro_batch = 2},
      {.name = "mixed",
       .weights = {20, 30, 50},
       .kv = {30, 30, 40},
       .activations = {10, 40, 50},
       .micro_batch = 2},
      {.name = "mixed, no overlap",
       .weights = {30, 50, 20},
       .kv = {10, 50, 40},
       .activations = {40, 30, 30},
       .overlap = false,
       .micro_batch = 3},
      {.name = "KV on host, the CPU attends", .kv = {0, 100, 0}, .attention = "host"},
      {.name = "KV on host, the CPU attends to one of many micro-batches",
       .kv = {0, 100, 0},
       .activations = {0, 100, 0},
       .micro_batch = 1,
       .attention = "host"},
      {.name = "mixed, the CPU attends",
       .weights = {20, 30, 50},
       .kv = {30, 40, 30},
       .activations = {50, 50, 0},
       .micro_batch = 2,
       .attention = "host"},
      {.name = "mixed, activations on disk, the CPU attends",
       .kv = {20, 50, 30},
       .activations = {10, 40, 50},
       .micro_batch = 1,
       .attention = "host"},
      {.name = "mixed, no overlap, the CPU attends",
       .kv = {40, 60, 0},
       .overlap = false,
       .micro_batch = 2,
       .attention = "host"},
  };
}

std::unique_ptr<Runtime> open(const std::string& checkpoint, const char* device, Format format,
                              Format kv_format, const Setup& setup) {
  EngineFlags flags;
  flags.device = device;
  flags.format = format;
  flags.kv_format = kv_format;
  flags.weights = setup.weights;
  flags.kv = setup.kv;
  flags.activations = setup.activations;
  flags.no_overlap = !setup.overlap;
  flags.attention = setup.attention;
  flags.block = 4;
  flags.micro_batch = setup.micro_batch;
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  flags.device_memory_bytes = uint64_t{1} << 30;
  if (setup.prefill_tokens > 0) flags.prefill_tokens = setup.prefill_tokens;
  return test::open_runtime(checkpoint, flags);
}

std::vector<Request> make_requests(const ModelShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Request> requests(10);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = test::random_prompt(random, 30, shape.vocabulary);
    requests[i].max_tokens = static_cast<int32_t>(2 + random() % 9);
    requests[i].ignore_eos = true;
    requests[i].sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;  // Drawn on the device
    if (i == 4) requests[i].logprobs = 2;                         // But for this one
    if (i % 3 == 1) {
      requests[i].kv.kind = KvRuleKind::kH2o;
      requests[i].kv.heavy = requests[i].kv.recent = KvAmount{5, 0};
    } else if (i % 3 == 2) {
      requests[i].kv.kind = KvRuleKind::kWindow;
      requests[i].kv.recent = KvAmount{6, 0};
      requests[i].kv.keep = 2;
    }
    if (i == 7) requests[i].kv.keep = 3;  // Of h2o's
    if (i == 8) {
      requests[i].kv.kind = KvRuleKind::kRandom;
      requests[i].kv.heavy = KvAmount{6, 0};
    }
    if (i == 9) {
      requests[i].kv.kind = KvRuleKind::kSnap;
      requests[i].kv.heavy = KvAmount{6, 0};
    }
  }
  return requests;
}

struct Ran {
  std::vector<Request> requests;
  Answers answers;
  double tolerance = 0;  // Of another placement
};

Ran run_on(const std::string& checkpoint, const char* device, Format format, Format kv_format,
           const Setup& setup = {}) {
  const auto runtime = open(checkpoint, device, format, kv_format, setup);
  Ran ran;
  ran.requests = make_requests(runtime->shape(), 20261122);
  ran.tolerance = test::placement_tolerance(*runtime, format, kv_format);
  if (ran.tolerance > 0) test::ask_logprobs(&ran.requests);
  ran.answers = test::run_together(*runtime, ran.requests);
  return ran;
}

void check_placements(const std::string& variant, Format format, Format kv_format,
                      int64_t prefill_tokens = 0) {
  // Only cuda_test has one on most machines.
  if (!test::has_accelerator()) return test::skip("no CUDA device");
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden(variant).checkpoints.front();
  INFO(variant << ", weights " << format_name(format) << ", KV " << format_name(kv_format));
  test::shuffle_accelerator(1);
  const size_t before = test::accelerator_leaks();
  const Ran expected = run_on(checkpoint, "cuda", format, kv_format);
  const auto difference = [&](const Ran& other) {
    return test::difference(expected.requests, expected.answers, other.answers, expected.tolerance);
  };
  if (format == Format::kF32 && kv_format == Format::kF32) {
    const test::TemporaryCache another;  // The CPU packs its weights otherwise.
    CHECK(difference(run_on(checkpoint, "cpu", format, kv_format)) == "");
  }
  uint64_t seed = 2;  // Of the order of streams
  for (Setup setup : setups()) {
    setup.prefill_tokens = prefill_tokens;
    INFO(setup.name << ", seed " << seed);
    test::shuffle_accelerator(seed++);
    CHECK(difference(run_on(checkpoint, "cuda", format, kv_format, setup)) == "");
  }
  CHECK(test::accelerator_leaks() == before);
}

TEST_CASE("every placement over three tiers gives the same tokens, float32", "[gpu][slow]") {
  check_placements("pre_ln_relu", Format::kF32, Format::kF32);
}

TEST_CASE("every placement over three tiers gives the same tokens, narrow formats",
          "[gpu][sanitizer][slow]") {
  check_placements("post_ln_projected", Format::kBF16, Format::kF16);
}

TEST_CASE("every placement over three tiers gives the same tokens, 4 bits",
          "[gpu][sanitizer][slow]") {
  check_placements("pre_ln_relu", Format::kQ4, Format::kQ4);
}

TEST_CASE("every placement over three tiers gives the same tokens, 8 bits",
          "[gpu][sanitizer][slow]") {
  check_placements("pre_ln_relu", Format::kQ8, Format::kF16);
}

// Layers of two sizes, and prompts in rings.
TEST_CASE("every placement over three tiers gives the same tokens, sliding windows",
          "[gpu][slow]") {
  check_placements("qwen2_window", Format::kF32, Format::kF32, 12);
}

// What is asked of a real device, whose products round by their shapes, in an emulation of that.
TEST_CASE("placements over three tiers differ by rounding where sums depend on shapes",
          "[gpu][slow]") {
  if (!test::emulated()) return test::skip("not an emulated device");
  test::emulate_sums_by_shape(true);
  check_placements("pre_ln_relu", Format::kF32, Format::kF32);
  check_placements("post_ln_projected", Format::kBF16, Format::kF16);
  check_placements("pre_ln_relu", Format::kQ4, Format::kQ4);
  test::emulate_sums_by_shape(false);
}

}  // namespace
}  // namespace spillway::tiers_test
