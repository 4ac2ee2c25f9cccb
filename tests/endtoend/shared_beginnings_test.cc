// Prompts that share the beginnings of others have the tokens that they have alone: over every
// placement, in every format of the cache and under every rule, whole and in chunks, with sequences
// that are set aside and come back. Two programs run it: cuda_test on the emulated device, and
// endtoend_test on the CPU, or on a GPU where there is one.
#include <catch2/catch.hpp>
#include <random>

#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"
#include "tests/support/seed.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_devices.h"

namespace spillway::shared_beginnings_test {
namespace {

using test::Answers;

constexpr TierPercent kAllDevice = {100, 0, 0};

struct Setup {
  const char* name = "";
  TierPercent weights = kAllDevice, kv = kAllDevice;
  std::optional<int64_t> micro_batch = {};
  int64_t block = 8;
  int64_t prefill_tokens = 200;
  int64_t prefill_target = 0;
  bool may_end_early = false;
  bool overlap = true;
};

std::unique_ptr<Runtime> open(const std::string& checkpoint, Format format, Format kv_format,
                              const Setup& setup, uint64_t prefix_bytes) {
  EngineFlags flags;
  flags.device = test::has_accelerator() ? "cuda" : "cpu";
  flags.format = format;
  flags.kv_format = kv_format;
  flags.weights = setup.weights;
  flags.kv = setup.kv;
  flags.block = setup.block;
  flags.micro_batch = setup.micro_batch;
  flags.prefill_tokens = setup.prefill_tokens;
  if (setup.prefill_target > 0) flags.prefill_target = setup.prefill_target;
  flags.no_overlap = !setup.overlap;
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  if (test::has_accelerator()) flags.device_memory_bytes = uint64_t{1} << 30;
  flags.prefix_cache_bytes = prefix_bytes;
  RuntimeOptions options;
  options.wishes.may_end_early = setup.may_end_early;
  auto runtime = Runtime::open(checkpoint, flags, options);
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  return std::move(runtime).value();
}

// Two of every rule with each of the beginnings, one of which begins like another. Fewer where the
// device is emulated, which takes minutes otherwise; the first is long enough for every rule
// (kBeginningBlocks).
std::vector<Request> make_requests(const ModelShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto tokens = [&](int64_t count) {
    std::vector<int32_t> drawn(static_cast<size_t>(count));
    for (int32_t& token : drawn) {
      token = static_cast<int32_t>(random() % static_cast<uint64_t>(shape.vocabulary));
    }
    return drawn;
  };
  const bool all = test::thorough();
  std::vector<std::vector<int32_t>> beginnings{tokens(70), tokens(all ? 66 : 35)};
  std::copy_n(beginnings[0].begin(), all ? 40 : 20, beginnings[1].begin());
  if (all) beginnings.push_back(tokens(20));
  std::vector<Request> requests(12 * beginnings.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.prompt = beginnings[i / 6 % beginnings.size()];
    const std::vector<int32_t> own = tokens(static_cast<int64_t>(1 + random() % (all ? 40 : 16)));
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.max_tokens = static_cast<int32_t>(1 + random() % 15);
    request.ignore_eos = true;
    request.sampling.temperature = i % 3 == 0 ? 0.8f : 0.0f;
    request.sampling.seed = i;
    const auto rule = static_cast<KvRuleKind>(i % 6 < 5 ? i % 6 : 0);
    if (rule == KvRuleKind::kFull) continue;
    request.kv.kind = rule;
    request.kv.recent = KvAmount{9, 0};
    if (rule != KvRuleKind::kWindow) request.kv.heavy = KvAmount{7, 0};
    if (i % 2 == 1) request.kv.keep = 3;
  }
  return requests;
}

std::vector<Setup> setups() {
  return {
      {.name = "in memory"},
      {.name = "KV on disk but for beginnings", .kv = {30, 0, 70}},
      {.name = "small micro-batches", .kv = {50, 20, 30}, .micro_batch = 2},
      {.name = "no overlap", .kv = {50, 20, 30}, .overlap = false},
      {.name = "weights on disk, chunks of 64", .weights = {0, 0, 100}, .prefill_tokens = 64},
      {.name = "chunks of 7", .prefill_tokens = 7},
      {.name = "chunks of 1", .prefill_tokens = 1},
      {.name = "a target", .prefill_target = 40},
      {.name = "as sequences grow", .block = 24, .may_end_early = true},
      {.name = "as sequences grow, a target",
       .kv = {60, 0, 40},
       .block = 24,
       .prefill_target = 50,
       .may_end_early = true},
  };
}

// In all setups, or where the device is emulated in one of four parts of them.
void check_setups(const std::string& variant, Format format, Format kv_format, uint64_t part) {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden(variant).checkpoints.front();
  INFO(variant << ", weights " << format_name(format) << ", KV " << format_name(kv_format));
  constexpr uint64_t kSeed = 20261126;
  std::vector<Request> requests;
  Answers expected;
  double tolerance = 0;
  {
    const auto runtime = open(checkpoint, format, kv_format, {}, 0);
    requests = make_requests(runtime->shape(), kSeed);
    tolerance = test::placement_tolerance(*runtime, format, kv_format);
    if (tolerance > 0) test::ask_logprobs(&requests);
    expected = test::run_arriving(*runtime, requests);
    CHECK(runtime->scheduler().stats().prefix_hits == 0);
  }
  uint64_t order = 0;
  int64_t cached_limited = 0;
  for (const Setup& setup : setups()) {
    INFO(setup.name);
    if (test::has_accelerator()) test::shuffle_accelerator(order + 2);
    if (order++ % 4 != part && !test::thorough()) continue;
    const auto runtime = open(checkpoint, format, kv_format, setup, uint64_t{1} << 30);
    const Answers found = test::run_arriving(*runtime, requests);
    CHECK(test::difference(requests, expected, found, tolerance) == "");
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].kv.kind) cached_limited += found[i].cached_tokens;
    }
    const SchedulerStats stats = runtime->scheduler().stats();
    CHECK(stats.kv_bytes_used == 0);
    CHECK(stats.prefix_hits > 0);
  }
  CHECK(cached_limited > 0);  // Rules that limit the cache found beginnings, too.
}

TEST_CASE("shared beginnings change no token, float32", "[gpu]") {
  check_setups("pre_ln_relu", Format::kF32, Format::kF32, 0);
}

TEST_CASE("shared beginnings change no token, grouped heads and narrow formats", "[gpu][slow]") {
  check_setups("llama3", Format::kF32, Format::kBF16, 1);
  check_setups("llama3", Format::kF32, Format::kQ4, 2);
  check_setups("post_ln_projected", Format::kBF16, Format::kBF16, 3);
}

}  // namespace
}  // namespace spillway::shared_beginnings_test
