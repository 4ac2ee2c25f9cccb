// Every KV rule with every option that a request may give, through the whole engine: its tokens and
// logprobs do not depend on block, micro-batch, chunks of its prompt, threads or placement.
#include <catch2/catch.hpp>
#include <random>

#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"

namespace spillway::kv_rules_test {
namespace {

using test::Answers;

KvRuleChoice rule(KvRuleKind kind, int64_t heavy, int64_t recent, const KvKeep& keep) {
  KvRuleChoice choice;
  choice.kind = kind;
  if (kind != KvRuleKind::kWindow) choice.heavy = KvAmount{heavy, 0};
  choice.recent = KvAmount{recent, 0};
  choice.keep = keep;
  return choice;
}

KvRuleChoice with_max(KvRuleChoice choice) {
  choice.snap = KvSnap::kMax;
  return choice;
}

std::vector<KvRuleChoice> rules() {
  return {rule(KvRuleKind::kH2o, 12, 8, 4),
          rule(KvRuleKind::kH2o, 6, 5, KvKeep({0, 0.25})),
          rule(KvRuleKind::kH2o, 6, 5, KvKeep::whole_prompt()),
          rule(KvRuleKind::kWindow, 0, 9, KvKeep({0, 0.1})),
          rule(KvRuleKind::kWindow, 0, 9, KvKeep::whole_prompt()),
          rule(KvRuleKind::kRandom, 12, 8, 0),
          rule(KvRuleKind::kRandom, 12, 8, 4),
          rule(KvRuleKind::kSnap, 30, 8, 0),
          rule(KvRuleKind::kSnap, 12, 8, 4),
          with_max(rule(KvRuleKind::kSnap, 30, 8, 4))};
}

struct Setup {
  const char* name;
  int64_t prefill_tokens = 4096;
  std::optional<TierPercent> weights = {}, kv = {};
  int64_t block = 16;
  std::optional<int64_t> micro_batch = {};
  int64_t threads = 2;
};

constexpr TierPercent kDisk = {0, 0, 100}, kMixed = {30, 20, 50};

std::unique_ptr<Runtime> open(const std::string& checkpoint, Format kv_format, const Setup& setup) {
  EngineFlags flags;
  flags.format = Format::kF32;
  flags.kv_format = kv_format;
  flags.weights = setup.weights;
  flags.kv = setup.kv;
  flags.block = setup.block;
  flags.micro_batch = setup.micro_batch;
  flags.threads = setup.threads;
  flags.host_memory_bytes = uint64_t{1} << 30;
  flags.prefill_tokens = setup.prefill_tokens;
  return test::open_runtime(checkpoint, flags);
}

// Each rule with a prompt that it prunes at its end and one that it does not.
std::vector<Request> make_requests(const ModelShape& shape) {
  std::mt19937_64 random(20261125);
  std::vector<Request> requests;
  for (const KvRuleChoice& choice : rules()) {
    for (const size_t length : {70, 9}) {
      Request request;
      while (request.prompt.size() < length) {
        request.prompt.push_back(
            static_cast<int32_t>(random() % static_cast<uint64_t>(shape.vocabulary)));
      }
      request.max_tokens = 40;
      request.ignore_eos = true;
      request.sampling.temperature = requests.size() % 3 == 0 ? 0.8f : 0.0f;
      request.sampling.seed = requests.size();
      request.logprobs = 1;
      request.kv = choice;
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

void check(const std::string& variant, Format kv_format, const std::vector<Setup>& setups) {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden(variant).checkpoints.front();
  std::vector<Request> requests;
  Answers expected;
  double tolerance = 0;
  {
    const auto runtime = open(checkpoint, kv_format, {.name = "alone", .threads = 1});
    requests = make_requests(runtime->shape());
    tolerance = test::placement_tolerance(*runtime, Format::kF32, kv_format);
    for (const Request& request : requests) {
      expected.push_back(test::run_together(*runtime, {request}).front());
    }
  }
  for (const Setup& setup : setups) {
    INFO(variant << ", cache " << format_name(kv_format) << ", " << setup.name);
    const auto runtime = open(checkpoint, kv_format, setup);
    CHECK(test::difference(requests, expected, test::run_together(*runtime, requests), tolerance) ==
          "");
    CHECK(runtime->scheduler().stats().kv_bytes_used == 0);
  }
}

TEST_CASE("no KV rule's tokens depend on block, chunks or placement", "[gpu]") {
  const std::vector<Setup> setups = {{.name = "together"},
                                     {.name = "small block", .block = 3, .micro_batch = 2},
                                     {.name = "chunks of one", .prefill_tokens = 1},
                                     {.name = "chunks of 7", .prefill_tokens = 7, .micro_batch = 1},
                                     {.name = "chunks of 64", .prefill_tokens = 64, .threads = 3},
                                     {.name = "cache on disk", .kv = kDisk},
                                     {.name = "chunks, all on three tiers",
                                      .prefill_tokens = 33,
                                      .weights = kMixed,
                                      .kv = kMixed,
                                      .micro_batch = 3}};
  for (const char* variant : {"pre_ln_relu", "llama3"}) check(variant, Format::kF32, setups);
}

// The request's own seed decides: the same request repeats its tokens, another seed keeps others.
TEST_CASE("the rule random draws by the seed of its request", "[gpu]") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("llama3").checkpoints.front();
  const auto runtime = open(checkpoint, Format::kF32, {.name = "alone"});
  Request request = make_requests(runtime->shape())[0];
  request.sampling.temperature = 0;
  request.kv = rule(KvRuleKind::kRandom, 6, 2, 0);
  const auto logprobs = [&](uint64_t seed) {
    request.sampling.seed = seed;
    const Answers answers = test::run_together(*runtime, {request});
    std::vector<float> found;
    for (const TokenLogprobs& token : answers.front().logprobs) found.push_back(token.logprob);
    return found;
  };
  const std::vector<float> first = logprobs(1);
  REQUIRE(first.size() == 40);
  CHECK(logprobs(1) == first);
  CHECK(logprobs(2) != first);
  request.kv.keep = KvKeep::whole_prompt();
  CHECK(logprobs(1) != first);
}

TEST_CASE("nor do they in a narrower cache", "[gpu]") {
  const Format format = GENERATE(Format::kBF16, Format::kF16, Format::kQ4, Format::kQ8);
  check("qwen3", format,
        {{.name = "chunks of 7", .prefill_tokens = 7},
         {.name = "chunks, cache on three tiers", .prefill_tokens = 50, .kv = kMixed}});
}

}  // namespace
}  // namespace spillway::kv_rules_test
