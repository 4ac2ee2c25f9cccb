// A prompt that is longer than a sweep's prompt tokens goes through in chunks: with the tokens and
// logprobs, bit for bit on the CPU, that it has in one piece, under every KV rule, in every format
// of the cache, from every tier. On a GPU, where there is one, to within rounding.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"

namespace spillway::chunks_test {
namespace {

using test::Answers;

struct Setup {
  int64_t prefill_tokens = 0;  // 0: every prompt goes whole
  Format kv_format = Format::kF32;
  std::optional<TierPercent> kv = {};
  std::optional<int64_t> micro_batch = {};
  Format format = Format::kF32;
  int64_t prefill_target = 0;
};

std::unique_ptr<Runtime> open(const std::string& checkpoint, const Setup& setup) {
  EngineFlags flags;
  flags.format = setup.format;
  flags.prefill_target = setup.prefill_target;
  flags.kv_format = setup.kv_format;
  flags.kv = setup.kv;
  flags.micro_batch = setup.micro_batch;
  flags.block = 8;
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  flags.prefill_tokens = setup.prefill_tokens > 0 ? setup.prefill_tokens : 4096;
  return test::open_runtime(checkpoint, flags);
}

// Ragged prompts, some shorter than any chunk, under every rule, some scored.
std::vector<Request> make_requests(const ModelShape& shape, const KvRuleChoice& rule) {
  std::mt19937_64 random(20261125);
  std::vector<Request> requests;
  for (const size_t length : {90, 3, 64, 65, 17, 101, 1, 40}) {
    Request request;
    while (request.prompt.size() < length) {
      request.prompt.push_back(
          static_cast<int32_t>(random() % static_cast<uint64_t>(shape.vocabulary)));
    }
    request.max_tokens = 20;
    request.ignore_eos = true;
    request.sampling.temperature = requests.size() % 2 == 0 ? 0.0f : 0.9f;
    request.sampling.seed = requests.size();
    request.logprobs = 2;
    if (requests.size() % 3 == 0) request.prompt_logprobs = 1;
    request.kv = rule;
    requests.push_back(std::move(request));
  }
  return requests;
}

void check_chunks(const std::string& variant, const KvRuleChoice& rule, Format kv_format,
                  std::optional<TierPercent> kv, Format format = Format::kF32) {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden(variant).checkpoints.front();
  std::vector<Request> requests;
  Answers expected;
  double tolerance = 0;
  {
    const auto whole = open(checkpoint, {.kv_format = kv_format, .format = format});
    requests = make_requests(whole->shape(), rule);
    tolerance = test::placement_tolerance(*whole, format, kv_format);
    expected = test::run_together(*whole, requests);
  }
  for (const int64_t prefill : {1, 7, 64, -1, -7, -64}) {
    // Cut by a sweep's prompt tokens, or by the target
    INFO(variant << (prefill > 0 ? ", chunks of " : ", target of ") << std::abs(prefill)
                 << ", cache " << format_name(kv_format));
    const auto runtime = open(checkpoint, {.prefill_tokens = std::max<int64_t>(0, prefill),
                                           .kv_format = kv_format,
                                           .kv = kv,
                                           .micro_batch = std::abs(prefill) == 7 ? 2 : 8,
                                           .format = format,
                                           .prefill_target = std::max<int64_t>(0, -prefill)});
    CHECK(test::difference(requests, expected, test::run_together(*runtime, requests), tolerance) ==
          "");
    const SchedulerStats stats = runtime->scheduler().stats();
    CHECK(stats.kv_bytes_used == 0);
    int64_t prompts = 0;
    for (const Request& request : requests) prompts += static_cast<int64_t>(request.prompt.size());
    CHECK(stats.prompt_tokens == static_cast<uint64_t>(prompts));
  }
}

KvRuleChoice h2o() {
  return {KvRuleKind::kH2o, KvAmount{6, 0}, KvAmount{0, 0.2}, {}, {}};
}
KvRuleChoice window() {
  return {KvRuleKind::kWindow, {}, KvAmount{9, 0}, 2, {}};
}

TEST_CASE("a prompt in chunks has the tokens that it has in one piece", "[gpu]") {
  const KvRuleChoice rule = GENERATE(KvRuleChoice{}, h2o(), window());
  for (const char* variant : {"pre_ln_relu", "llama3", "gpt_neox"}) {
    check_chunks(variant, rule, Format::kF32, {});
  }
}

TEST_CASE("chunks do not show in a narrower cache either", "[gpu]") {
  const Format format = GENERATE(Format::kBF16, Format::kQ4, Format::kQ8);
  check_chunks("llama3", KvRuleChoice{}, format, {});
  check_chunks("qwen3", h2o(), format, {});
}

TEST_CASE("chunks do not show in 16-bit products and attention", "[gpu]") {
  const Format format = GENERATE(Format::kBF16, Format::kF16);
  check_chunks("llama3", KvRuleChoice{}, format, {}, format);
  check_chunks("pre_ln_relu", h2o(), format, TierPercent{0, 0, 100}, format);
}

TEST_CASE("chunks do not show with a cache on disk", "[gpu]") {
  check_chunks("llama3", KvRuleChoice{}, Format::kF32, TierPercent{0, 0, 100});
  check_chunks("llama3", h2o(), Format::kF32, TierPercent{30, 30, 40});
  check_chunks("pre_ln_relu", window(), Format::kBF16, TierPercent{0, 0, 100});
}

}  // namespace
}  // namespace spillway::chunks_test
