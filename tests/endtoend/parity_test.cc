// Real checkpoints through converter, loader, engine and scheduler against transformers in float32:
// the same greedy tokens, logits within 1e-4, logprobs within 1e-3.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "server/runtime.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden.h"
#include "tests/support/places.h"
#include "tests/support/skip.h"

namespace spillway::parity_test {
namespace {

using test::CollectingSink;
using test::Golden;
using test::GoldenLogits;
using test::GoldenPrompt;

constexpr double kLogitError = 1e-4;    // Relative to the largest logit compared
constexpr double kLogprobError = 1e-3;  // Absolute

std::unique_ptr<Runtime> open(const std::string& checkpoint, bool scheduler) {
  EngineFlags flags;
  flags.format = Format::kF32;
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  RuntimeOptions options;
  options.start_scheduler = scheduler;
  Result<std::unique_ptr<Runtime>> runtime = Runtime::open(checkpoint, flags, options);
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  return std::move(runtime).value();
}

// All prompts in one block, greedily.
void check_tokens(const Golden& golden, Runtime& runtime) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const GoldenPrompt& prompt : golden.prompts) {
    Request request;
    request.prompt = prompt.prompt;
    request.max_tokens = static_cast<int32_t>(prompt.tokens.size());
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.logprobs = 5;
    if (!prompt.prompt_logprobs.empty()) request.prompt_logprobs = 0;
    sinks.push_back(std::make_shared<CollectingSink>());
    const auto submitted = runtime.scheduler().submit(std::move(request), sinks.back());
    INFO(submitted.status().message());
    REQUIRE(submitted.ok());
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    const GoldenPrompt& prompt = golden.prompts[i];
    CollectingSink& sink = *sinks[i];
    INFO("prompt " << i << " of " << prompt.prompt.size() << " tokens");
    CHECK(sink.wait().reason == FinishReason::kLength);
    REQUIRE(sink.tokens == prompt.tokens);
    for (size_t t = 0; t < prompt.tokens.size(); ++t) {
      CHECK(std::abs(sink.logprobs[t].logprob - prompt.logprobs[t]) < kLogprobError);
    }
    for (const test::GoldenTop& top : prompt.top_logprobs) {
      const auto& best = sink.logprobs[static_cast<size_t>(top.step)].best;
      REQUIRE(best.size() == top.ids.size());
      for (size_t k = 0; k < best.size(); ++k) {
        CHECK(best[k].first == top.ids[k]);
        CHECK(std::abs(best[k].second - top.logprobs[k]) < kLogprobError);
      }
    }
    if (prompt.prompt_logprobs.empty()) continue;
    REQUIRE(sink.prompt_logprobs.size() == prompt.prompt_logprobs.size() + 1);
    for (size_t t = 0; t < prompt.prompt_logprobs.size(); ++t) {
      CHECK(std::abs(sink.prompt_logprobs[t + 1].logprob - prompt.prompt_logprobs[t]) <
            kLogprobError);
    }
  }
}

// Compares the logits of a sweep of one item with a golden row.
class LogitsCheck final : public LogitsSink {
 public:
  explicit LogitsCheck(const GoldenLogits& expected) : expected_(expected) {}
  void on_logits(size_t, int64_t, std::span<float> logits) override {
    double size = 0, error = 0;
    const auto compare = [&](size_t id, float value) {
      size = std::max(size, std::abs(double{value}));
      error = std::max(error, std::abs(double{logits[id]} - value));
    };
    for (size_t i = 0; i < expected_.first.size(); ++i) compare(i, expected_.first[i]);
    for (size_t i = 0; i < expected_.top.size(); ++i) {
      compare(static_cast<size_t>(expected_.top_ids[i]), expected_.top[i]);
    }
    CHECK(error < kLogitError * size);
    ++rows;
  }
  void on_failure(size_t, const Status& status) override { FAIL(status.message()); }
  int rows = 0;

 private:
  const GoldenLogits& expected_;
};

// Logits behind the prompt, and, through the cache, behind the last generated token but one.
void check_logits(const Golden& golden, Engine& engine) {
  for (const GoldenPrompt& prompt : golden.prompts) {
    INFO("prompt of " << prompt.prompt.size() << " tokens");
    std::vector<int32_t> all = prompt.prompt;
    all.insert(all.end(), prompt.tokens.begin(), prompt.tokens.end());
    const auto length = static_cast<int64_t>(prompt.prompt.size());
    const auto last = static_cast<int64_t>(all.size()) - 1;
    auto kv = engine.reserve(last + 1).value();
    LogitsCheck after_prompt(prompt.logits_prompt), after_last(prompt.logits_last);
    const std::span<const int32_t> tokens(all);
    const SweepItem first{
        .tokens = tokens.first(prompt.prompt.size()), .position = 0, .kv = kv.get()};
    REQUIRE(engine.run(std::span(&first, 1), after_prompt).ok());
    for (int64_t position = length; position < last; ++position) {
      SweepItem next{.tokens = tokens.subspan(static_cast<size_t>(position), 1),
                     .position = position,
                     .kv = kv.get()};
      next.no_logits = position + 1 < last;
      REQUIRE(engine.run(std::span(&next, 1), after_last).ok());
    }
    CHECK(after_prompt.rows == 1);
    engine.release(std::move(kv));
  }
}

void check_variant(const std::string& variant) {
  const Golden golden = test::read_golden(variant);
  REQUIRE(!golden.checkpoints.empty());
  const test::TemporaryCache cache;
  for (const std::string& checkpoint : golden.checkpoints) {
    INFO(checkpoint);
    check_tokens(golden, *open(checkpoint, true));
    check_logits(golden, open(checkpoint, false)->engine());
  }
}

TEST_CASE("random checkpoints of every family agree with transformers") {
  const std::vector<std::string> variants = test::golden_variants();
  CHECK(variants.size() >= 5);
  for (const std::string& variant : variants) {
    INFO(variant);
    check_variant(variant);
  }
}

TEST_CASE("the demo model agrees with transformers") {
  if (!std::filesystem::exists(test::source_directory() + "/tests/golden/demo.json")) {
    return test::skip("no golden file of the demo model");
  }
  check_variant("demo");
}

}  // namespace
}  // namespace spillway::parity_test
