// A scheduler over pipeline stages gives the tokens of one over a whole model, whatever the cuts,
// the tiers and the KV rule; and what goes wrong in a stage is told.
#include "scheduler/stages/stage_ring.h"

#include <catch2/catch.hpp>
#include <map>

#include "tests/support/collecting_sink.h"
#include "tests/support/stages.h"
#include "tests/support/tiny_shape.h"

namespace spillway::stage_ring_test {
namespace {

using test::CollectingSink;
using test::numbered_request;
using test::Stages;
using test::StageTiers;

constexpr int64_t kLayers = 5;

using Tokens = std::map<int, std::vector<int32_t>>;

// The tokens of some requests of different lengths, and one more that comes late.
Tokens run(const ModelShape& shape, const std::vector<int64_t>& cuts,
           const SchedulerOptions& options, const StageTiers& tiers, int requests) {
  Stages stages(shape, cuts, options, tiers);
  std::map<int, std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < requests; ++i) {
    if (i + 1 == requests) sinks[i - 1]->wait_tokens(2);
    sinks[i] = std::make_shared<CollectingSink>();
    REQUIRE(stages.scheduler().submit(numbered_request(i, 4 + i % 7), sinks[i]).ok());
  }
  Tokens tokens;
  for (auto& [number, sink] : sinks) {
    const Finish finish = sink->wait();
    INFO(finish.status.message());
    CHECK(finish.reason == FinishReason::kLength);
    tokens[number] = sink->tokens;
  }
  const SchedulerStats stats = stages.scheduler().stats();
  CHECK(stats.running == 0);
  CHECK(stats.kv_bytes_used == 0);
  CHECK(stages.end());
  return tokens;
}

SchedulerOptions options_of(KvRuleKind rule) {
  SchedulerOptions options;
  options.block_sequences_max = 8;
  options.prefill_tokens_max = 24;  // Longer prompts go in chunks.
  options.kv_rule.kind = rule;
  return options;
}

TEST_CASE("stages give the tokens of a whole model") {
  const ModelShape shape = GENERATE(test::tiny_shape(kLayers), test::rotary_shape(kLayers));
  const KvRuleKind rule = GENERATE(KvRuleKind::kFull, KvRuleKind::kH2o, KvRuleKind::kWindow);
  const SchedulerOptions options = options_of(rule);
  StageTiers tiers{.kv_bytes = kv_layout(shape, Format::kF32).sequence_bytes(64) * 9};
  const Tokens whole = run(shape, {}, options, tiers, 13);
  for (const std::vector<int64_t>& cuts :
       std::vector<std::vector<int64_t>>{{1}, {4}, {1, 3}, {1, 2, 3, 4}}) {
    for (const bool on_disk : {false, true}) {
      INFO(cuts.size() + 1 << " stages" << (on_disk ? ", on disk" : "") << ", rule "
                           << kv_rule_name(rule));
      tiers.on_disk = on_disk;
      CHECK(run(shape, cuts, options, tiers, 13) == whole);
    }
  }
}

TEST_CASE("stages with little room run fewer sequences at once, and the same tokens") {
  const ModelShape shape = test::tiny_shape(kLayers);
  const SchedulerOptions options = options_of(KvRuleKind::kFull);
  const uint64_t longest = kv_layout(shape, Format::kF32).sequence_bytes(64);
  const Tokens whole = run(shape, {}, options, {.kv_bytes = 9 * longest}, 13);
  CHECK(run(shape, {2, 3}, options, {.kv_bytes = longest}, 13) == whole);
}

TEST_CASE("stages take drafts") {
  const ModelShape shape = test::tiny_shape(kLayers);
  SchedulerOptions options = options_of(KvRuleKind::kFull);
  const StageTiers tiers{.kv_bytes = 9 * kv_layout(shape, Format::kF32).sequence_bytes(64)};
  const Tokens whole = run(shape, {}, options, tiers, 9);
  options.draft_tokens = 3;
  CHECK(run(shape, {2}, options, tiers, 9) == whole);
}

TEST_CASE("a cancelled sequence of stages leaves, and the others go on") {
  const ModelShape shape = test::tiny_shape(kLayers);
  const StageTiers tiers{.kv_bytes = 9 * kv_layout(shape, Format::kF32).sequence_bytes(64)};
  Stages stages(shape, {2, 4}, options_of(KvRuleKind::kFull), tiers);
  const auto stays = std::make_shared<CollectingSink>(),
             leaves = std::make_shared<CollectingSink>();
  const auto id = stages.scheduler().submit(numbered_request(1, 50), leaves);
  REQUIRE(stages.scheduler().submit(numbered_request(2, 40), stays).ok());
  leaves->wait_tokens(2);
  stages.scheduler().cancel(id.value());
  CHECK(leaves->wait().reason == FinishReason::kCancelled);
  CHECK(stays->wait().reason == FinishReason::kLength);
  CHECK(stages.end());
}

TEST_CASE("a scheduler of stages that ends with sequences under way cancels them") {
  const ModelShape shape = test::tiny_shape(kLayers);
  const StageTiers tiers{.kv_bytes = 9 * kv_layout(shape, Format::kF32).sequence_bytes(64)};
  const int64_t ranks = GENERATE(1, 2);  // Of each stage
  Stages stages(shape, {2, 4}, options_of(KvRuleKind::kFull), tiers, ranks);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    REQUIRE(stages.scheduler().submit(numbered_request(i, 30), sinks.back()).ok());
  }
  sinks[0]->wait_tokens(1);
  CHECK(stages.end());
  for (const auto& sink : sinks) {
    const FinishReason reason = sink->wait().reason;
    CHECK((reason == FinishReason::kCancelled || reason == FinishReason::kLength));
  }
}

TEST_CASE("drain() of stages returns when all sequences have been reported") {
  const ModelShape shape = test::tiny_shape(kLayers);
  const StageTiers tiers{.kv_bytes = 9 * kv_layout(shape, Format::kF32).sequence_bytes(64)};
  struct Counts final : TokenSink {
    explicit Counts(std::atomic<int>* of) : reported(of) {}
    AfterToken on_token(int32_t, const TokenLogprobs*) override { return AfterToken::kGoOn; }
    void on_finish(const Finish&) override { ++*reported; }
    std::atomic<int>* reported;
  };
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> reported = 0;
    Stages stages(shape, {2, 4}, options_of(KvRuleKind::kFull), tiers);
    for (int i = 0; i < 8; ++i) {
      const auto sink = std::make_shared<Counts>(&reported);
      REQUIRE(stages.scheduler().submit(numbered_request(i, 30), sink).ok());
    }
    stages.scheduler().drain(round % 2 == 0 ? 0 : 0.002);
    CHECK(reported == 8);
  }
}

TEST_CASE("a request that a stage's cache cannot hold is refused with the rank's name") {
  const ModelShape shape = test::tiny_shape(kLayers);
  const uint64_t longest = kv_layout(shape, Format::kF32).sequence_bytes(64);
  test::StageEngine last(shape, {4, 1}, 64, {.kv_bytes = 9 * longest});
  auto boxes = thread_mail(3);
  std::vector<KvCacheOptions> caches(2);
  for (KvCacheOptions& cache : caches) cache.layout = kv_layout(shape, Format::kF32);
  caches[0].layers = {0, 2};
  caches[1].layers = {2, 2};
  caches[0].memory_bytes = 18 * longest;
  caches[1].memory_bytes = longest;  // Half of what one sequence takes
  auto ring = stage_ring(*boxes[0], shape.hidden, caches).value();
  const auto scheduler =
      start_scheduler(std::move(last.engine), options_of(KvRuleKind::kFull), {}, std::move(ring));
  const Status status =
      scheduler->submit(numbered_request(4, 30), std::make_shared<CollectingSink>()).status();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find("rank 2: the sequence needs") == 0);
}

TEST_CASE("when a stage is gone its sequences end with an error, and nothing more is taken") {
  const ModelShape shape = test::tiny_shape(kLayers);
  const uint64_t longest = kv_layout(shape, Format::kF32).sequence_bytes(64);
  auto mail = test::StageEngine(shape, {2, 3}, 64, {.kv_bytes = 9 * longest});
  auto boxes = thread_mail(2);
  KvCacheOptions cache;
  cache.layout = kv_layout(shape, Format::kF32);
  cache.layers = {0, 2};
  cache.memory_bytes = 18 * longest;
  auto ring = stage_ring(*boxes[0], shape.hidden, {cache}).value();
  SchedulerOptions options = options_of(KvRuleKind::kFull);
  const auto scheduler = start_scheduler(std::move(mail.engine), options, {}, std::move(ring));
  const auto sink = std::make_shared<CollectingSink>();
  REQUIRE(scheduler->submit(numbered_request(0, 5), sink).ok());
  boxes[1].reset();
  const Finish finish = sink->wait();
  CHECK(finish.reason == FinishReason::kError);
  CHECK(finish.status.code() == Code::kDeviceLost);
  CHECK_FALSE(scheduler->submit(numbered_request(0, 5), std::make_shared<CollectingSink>()).ok());
}

}  // namespace
}  // namespace spillway::stage_ring_test
