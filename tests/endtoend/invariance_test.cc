// A sequence's tokens are its own: the same alone, among 64 others, arriving in the middle of a
// run, with any block and micro-batch size and any number of threads. All
// prompts differ, since equal prompts hide mixed-up caches. On a GPU, where there is one, narrow
// formats are compared to within rounding (answers.h).
#include <catch2/catch.hpp>
#include <random>

#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"

namespace spillway::invariance_test {
namespace {

using test::Answers;
using test::CollectingSink;
using test::difference;
using test::run_together;

struct Setup {
  Format format = Format::kF32;
  std::optional<Format> kv_format = {};
  std::optional<int64_t> block = {}, micro_batch = {};
  int64_t threads = 2;
  int64_t prefill_tokens_max = 0;
};

std::unique_ptr<Runtime> open(const std::string& checkpoint, const Setup& setup) {
  EngineFlags flags;
  flags.format = setup.format;
  flags.kv_format = setup.kv_format;
  flags.block = setup.block;
  flags.micro_batch = setup.micro_batch;
  flags.threads = setup.threads;
  flags.host_memory_bytes = uint64_t{1} << 30;
  if (setup.prefill_tokens_max > 0) flags.prefill_tokens = setup.prefill_tokens_max;
  return test::open_runtime(checkpoint, flags);
}

// Sixty-five distinct ragged requests, every second one sampled, every second one with a KV rule.
std::vector<Request> make_requests(const ModelShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Request> requests(65);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.prompt = test::random_prompt(random, 60, shape.vocabulary);
    request.max_tokens = static_cast<int32_t>(1 + random() % 40);
    request.ignore_eos = i % 3 == 0;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    request.sampling.seed = i;
    request.sampling.repetition_penalty = i % 5 == 0 ? 1.2f : 1.0f;
    if (i % 4 == 1) {
      request.kv = {KvRuleKind::kH2o, KvAmount{4, 0}, KvAmount{0, 0.2}, {}, {}};
    }
    if (i % 4 == 2) {
      request.kv = {KvRuleKind::kWindow, {}, KvAmount{7, 0}, 2, {}};
    }
  }
  return requests;
}

Answers run_alone(Runtime& runtime, const std::vector<Request>& requests) {
  Answers answers;
  for (const Request& request : requests) {
    answers.push_back(run_together(runtime, {request}).front());
  }
  return answers;
}

// Each next request arrives after the one before it has some tokens.
Answers run_staggered(Runtime& runtime, const std::vector<Request>& requests) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (size_t i = 0; i < requests.size(); ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    REQUIRE(runtime.scheduler().submit(requests[i], sinks.back()).ok());
    if (i % 4 == 0) sinks.back()->wait_tokens(3);
  }
  return test::answers_of(sinks);
}

TEST_CASE("tokens do not depend on the company a sequence keeps", "[gpu]") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  constexpr uint64_t kSeed = 20261121;
  INFO("seed " << kSeed);
  for (const Format format : {Format::kF32, Format::kBF16, Format::kF16}) {
    INFO("format " << format_name(format));
    std::vector<Request> requests;
    Answers expected;
    double tolerance = 0;
    {
      const auto runtime = open(checkpoint, {.format = format, .threads = 1});
      requests = make_requests(runtime->shape(), kSeed);
      tolerance = test::placement_tolerance(*runtime, format, format);
      if (tolerance > 0) test::ask_logprobs(&requests);
      expected = run_alone(*runtime, requests);
    }
    const Setup setups[] = {{.format = format},
                            {.format = format, .block = 64, .prefill_tokens_max = 100},
                            {.format = format, .block = 7, .micro_batch = 3},
                            {.format = format, .block = 64, .micro_batch = 1, .threads = 3}};
    for (const Setup& setup : setups) {
      INFO("block " << setup.block.value_or(0) << " micro-batch " << setup.micro_batch.value_or(0));
      const auto runtime = open(checkpoint, setup);
      CHECK(difference(requests, expected, run_together(*runtime, requests), tolerance) == "");
      CHECK(difference(requests, expected, run_staggered(*runtime, requests), tolerance) == "");
      const SchedulerStats stats = runtime->scheduler().stats();
      CHECK(stats.running == 0);
      CHECK(stats.waiting == 0);
      CHECK(stats.kv_bytes_used == 0);
    }
  }
}

TEST_CASE("a narrower cache is batch-invariant, too", "[gpu]") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("post_ln_projected").checkpoints.front();
  for (const Format kv : {Format::kBF16, Format::kF16}) {
    INFO("KV " << format_name(kv));
    const auto runtime = open(checkpoint, {.kv_format = kv, .block = 9});
    std::vector<Request> requests = make_requests(runtime->shape(), 7);
    const double tolerance = test::placement_tolerance(*runtime, Format::kF32, kv);
    if (tolerance > 0) test::ask_logprobs(&requests);
    const Answers expected = run_alone(*runtime, requests);
    CHECK(difference(requests, expected, run_staggered(*runtime, requests), tolerance) == "");
  }
}

TEST_CASE("little KV memory delays sequences and changes nothing", "[gpu]") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  const auto roomy = open(checkpoint, {});
  const std::vector<Request> requests = make_requests(roomy->shape(), 8);
  const Answers expected = run_together(*roomy, requests);
  // A block of one leaves exactly one longest sequence's memory.
  const auto tight = open(checkpoint, {.block = 1});
  CHECK(difference(requests, expected, run_together(*tight, requests), 0) == "");  // float32
}

}  // namespace
}  // namespace spillway::invariance_test
