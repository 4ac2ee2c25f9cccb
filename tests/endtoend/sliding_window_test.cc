// Models of which layers have a sliding window run at their full length: with transformers' tokens,
// whole and in chunks, in any block, from every tier; their windowed layers keep the window alone,
// which every KV rule goes with.
#include <catch2/catch.hpp>
#include <random>

#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"

namespace spillway::sliding_window_test {
namespace {

using test::Answers;

const char* const kVariants[] = {"mistral_window", "qwen2_window", "smollm3_window", "phi3_window"};

struct Setup {
  const char* name = "";
  int64_t prefill_tokens = 4096;
  std::optional<TierPercent> weights = {}, kv = {};
  int64_t block = 8;
  std::optional<int64_t> micro_batch = {};
  Format kv_format = Format::kF32;
};

std::vector<Setup> setups() {
  return {{.name = "in memory"},
          {.name = "one after another", .block = 1},
          {.name = "chunks of 1", .prefill_tokens = 1},
          {.name = "chunks of 7", .prefill_tokens = 7, .micro_batch = 2},
          {.name = "chunks of 64", .prefill_tokens = 64},
          {.name = "KV on disk", .kv = TierPercent{0, 0, 100}},
          {.name = "KV on disk, chunks of 7", .prefill_tokens = 7, .kv = TierPercent{0, 0, 100}},
          {.name = "all on disk, chunks of 30",
           .prefill_tokens = 30,
           .weights = TierPercent{0, 0, 100},
           .kv = TierPercent{0, 0, 100},
           .micro_batch = 3},
          {.name = "mixed, chunks of 20",
           .prefill_tokens = 20,
           .weights = TierPercent{20, 30, 50},
           .kv = TierPercent{30, 30, 40},
           .block = 5}};
}

std::unique_ptr<Runtime> open(const std::string& checkpoint, const Setup& setup) {
  EngineFlags flags;
  flags.format = Format::kF32;
  flags.kv_format = setup.kv_format;
  flags.weights = setup.weights;
  flags.kv = setup.kv;
  flags.block = setup.block;
  flags.micro_batch = setup.micro_batch;
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  flags.prefill_tokens = setup.prefill_tokens;
  return test::open_runtime(checkpoint, flags);
}

Request greedy(std::vector<int32_t> prompt, size_t tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = static_cast<int32_t>(tokens);
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  return request;
}

TEST_CASE("tokens of models with sliding windows are transformers'", "[gpu]") {
  for (const char* variant : kVariants) {
    const test::TemporaryCache cache;
    const test::Golden golden = test::read_golden(variant);
    std::vector<Request> requests;
    for (const test::GoldenPrompt& prompt : golden.prompts) {
      requests.push_back(greedy(prompt.prompt, prompt.tokens.size()));
    }
    for (const Setup& setup : setups()) {
      INFO(variant << ", " << setup.name);
      const auto runtime = open(golden.checkpoints.front(), setup);
      const ModelShape& shape = runtime->shape();
      CHECK(shape.positions == 128);
      CHECK(shape.sliding_window > 0);
      const Answers answers = test::run_together(*runtime, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        INFO("prompt of " << requests[i].prompt.size() << " tokens");
        CHECK(answers[i].tokens == golden.prompts[i].tokens);
      }
      CHECK(runtime->scheduler().stats().kv_bytes_used == 0);
    }
  }
}

// Every rule: ragged prompts, half of the requests drawn.
std::vector<Request> with_rules(const ModelShape& shape) {
  std::mt19937_64 random(20261125);
  const KvRuleChoice rules[] = {
      {},
      {KvRuleKind::kH2o, KvAmount{6, 0}, KvAmount{0, 0.2}, {}, {}},
      {KvRuleKind::kWindow, {}, KvAmount{9, 0}, 2, {}},
      {KvRuleKind::kRandom, KvAmount{5, 0}, KvAmount{4, 0}, {}, {}},
      {KvRuleKind::kSnap, KvAmount{12, 0}, KvAmount{0, 0.1}, {}, {}},
      {KvRuleKind::kH2o, KvAmount{2, 0}, KvAmount{2, 0}, {}, {}},
  };
  std::vector<Request> requests;
  for (const size_t length : {90, 3, 64, 65, 17, 101, 1, 40, 77, 33, 5, 100}) {
    std::vector<int32_t> prompt;
    while (prompt.size() < length) {
      prompt.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(shape.vocabulary)));
    }
    Request request = greedy(std::move(prompt), 20);
    if (requests.size() % 2 == 1) request.sampling.temperature = 0.9f;
    request.sampling.seed = requests.size();
    request.logprobs = 2;
    request.kv = rules[requests.size() % std::size(rules)];
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST_CASE("under every rule a windowed model's tokens depend on nothing else", "[gpu]") {
  const Format format = GENERATE(Format::kF32, Format::kQ4, Format::kQ8);
  for (const char* variant : {"qwen2_window", "mistral_window"}) {
    const test::TemporaryCache cache;
    const std::string checkpoint = test::read_golden(variant).checkpoints.front();
    std::vector<Request> requests;
    Answers expected;
    double tolerance = 0;
    for (Setup setup : setups()) {
      INFO(variant << ", " << setup.name << ", cache " << format_name(format));
      setup.kv_format = format;
      const auto runtime = open(checkpoint, setup);
      if (expected.empty()) {
        requests = with_rules(runtime->shape());
        tolerance = test::placement_tolerance(*runtime, Format::kF32, format);
        expected = test::run_together(*runtime, requests);
        continue;
      }
      CHECK(test::difference(requests, expected, test::run_together(*runtime, requests),
                             tolerance) == "");
      CHECK(runtime->scheduler().stats().kv_bytes_used == 0);
    }
  }
}

TEST_CASE("layers with a window take its bytes alone") {
  const test::TemporaryCache cache;
  const auto layer_bytes = [](const Runtime& runtime, int64_t rows) {
    return kv_layout(runtime.shape(), Format::kF32).sequence_bytes(rows);
  };
  // A block of one longest sequence is what the plan gives a cache.
  const auto one = open(test::read_golden("mistral_window").checkpoints.front(), {.block = 1});
  CHECK(one->plan().kv.sum() == 2 * layer_bytes(*one, 8));
  CHECK(one->plan().sequences_at_once == 1);
  const auto half = open(test::read_golden("qwen2_window").checkpoints.front(), {.block = 3});
  CHECK(half->plan().kv.sum() == 3 * (2 * layer_bytes(*half, 128) + 2 * layer_bytes(*half, 8)));
  CHECK(half->plan().sequences_at_once == 3);
  // In chunks of 7 a prompt's rows lie in a ring of 64 meanwhile.
  const auto chunked = open(test::read_golden("mistral_window").checkpoints.front(),
                            {.prefill_tokens = 7, .block = 1});
  CHECK(chunked->plan().kv.sum() == 2 * layer_bytes(*chunked, 64));
}

}  // namespace
}  // namespace spillway::sliding_window_test
