// A whole Runtime on a device with memory of its own: the tokens of the CPU device in float32, and
// the same tokens from every placement over device, host and disk (of a real device in narrow
// formats: the same to within rounding). Two programs run it: cuda_test on the emulated device,
// whose copies and kernels of different streams happen in any order, and endtoend_test on a real
// one, where there is one.
#include <catch2/catch.hpp>

#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/golden.h"
#include "tests/support/skip.h"
#include "tests/support/test_devices.h"
#include "tests/support/tier_setups.h"

namespace spillway::tiers_test {
namespace {

using test::Answers;
using test::TierSetup;

struct Ran {
  std::vector<Request> requests;
  Answers answers;
  double tolerance = 0;  // Of another placement
};

Ran run_on(const std::string& checkpoint, const char* device, Format format, Format kv_format,
           const TierSetup& setup = {}) {
  const auto runtime =
      test::open_runtime(checkpoint, test::tier_flags(device, format, kv_format, setup));
  Ran ran;
  ran.requests = test::tier_requests(runtime->shape(), 20261122);
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
  for (TierSetup setup : test::tier_setups()) {
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
