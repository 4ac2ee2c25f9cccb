// Pipeline stages, each of several ranks that share its layers: the tokens are those of ranks that
// share all layers, and what goes wrong on any rank is told. (That these are a whole model's:
// endtoend/ranks_test.cc.)
#include "scheduler/stages/stages_of_ranks.h"

#include <catch2/catch.hpp>
#include <map>

#include "tests/support/collecting_sink.h"
#include "tests/support/stages.h"
#include "tests/support/tiny_shape.h"

namespace spillway::stages_of_ranks_test {
namespace {

using test::CollectingSink;
using test::numbered_request;
using test::Stages;
using test::StageTiers;

constexpr int64_t kLayers = 4;

SchedulerOptions chunked(KvRuleKind rule = KvRuleKind::kFull) {
  SchedulerOptions options;
  options.block_sequences_max = 8;
  options.prefill_tokens_max = 24;  // Longer prompts go in chunks.
  options.kv_rule.kind = rule;
  return options;
}

StageTiers tiers_for(const ModelShape& shape, int64_t sequences) {
  const uint64_t longest = kv_layout(shape, Format::kF32).sequence_bytes(64);
  return {.kv_bytes = static_cast<uint64_t>(sequences) * longest};
}

std::map<int, std::vector<int32_t>> tokens_of(Stages& stages) {
  std::map<int, std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 11; ++i) {
    sinks[i] = std::make_shared<CollectingSink>();
    REQUIRE(stages.scheduler().submit(numbered_request(i, 4 + i % 7), sinks[i]).ok());
  }
  std::map<int, std::vector<int32_t>> tokens;
  for (auto& [number, sink] : sinks) {
    const Finish finish = sink->wait();
    INFO(finish.status.message());
    CHECK(finish.reason == FinishReason::kLength);
    tokens[number] = sink->tokens;
  }
  CHECK(stages.scheduler().stats().kv_bytes_used == 0);
  CHECK(stages.end());
  return tokens;
}

TEST_CASE("stages of several ranks give the tokens of as many ranks") {
  const ModelShape shape = GENERATE(test::tiny_shape(kLayers), test::rotary_shape(kLayers));
  const KvRuleKind rule = GENERATE(KvRuleKind::kFull, KvRuleKind::kH2o);
  StageTiers tiers = tiers_for(shape, 9);
  Stages one(shape, {}, chunked(rule), tiers, 2);
  const auto whole = tokens_of(one);
  for (const std::vector<int64_t>& cuts : std::vector<std::vector<int64_t>>{{1}, {3}, {1, 2}}) {
    for (const bool on_disk : {false, true}) {
      INFO(cuts.size() + 1 << " stages of 2 ranks" << (on_disk ? ", on disk" : "") << ", rule "
                           << kv_rule_name(rule));
      tiers.on_disk = on_disk;
      Stages stages(shape, cuts, chunked(rule), tiers, 2);
      CHECK(tokens_of(stages) == whole);
    }
  }
}

TEST_CASE("stages of many ranks, which do not wait for each other's end, are no error") {
  const ModelShape shape = test::make_shape({.layers = kLayers, .heads = 4});
  Stages one(shape, {}, chunked(), tiers_for(shape, 9), 4);
  const auto whole = tokens_of(one);
  for (int i = 0; i < 5; ++i) {
    Stages stages(shape, {1, 3}, chunked(), tiers_for(shape, 9), 4);
    CHECK(tokens_of(stages) == whole);
  }
}

TEST_CASE("stages of several ranks take drafts, and make way for each other") {
  const ModelShape shape = test::tiny_shape(kLayers);
  SchedulerOptions options = chunked();
  Stages one(shape, {}, options, tiers_for(shape, 9), 2);
  const auto whole = tokens_of(one);
  options.draft_tokens = 3;
  Stages drafted(shape, {2}, options, tiers_for(shape, 9), 2);
  CHECK(tokens_of(drafted) == whole);
  // Where a follower has the least room.
  Stages small(shape, {2}, options, tiers_for(shape, 9), 2, tiers_for(shape, 1));
  CHECK(tokens_of(small) == whole);
}

void check_lost(size_t stage, size_t rank, uint64_t skip, const std::string& reason) {
  INFO("stage " << stage << ", rank " << rank << " after " << skip << " reads");
  const ModelShape shape = test::tiny_shape(kLayers);
  StageTiers tiers = tiers_for(shape, 9);
  tiers.on_disk = true;
  Stages stages(shape, {2}, chunked(), tiers, 2);
  Scheduler& scheduler = stages.scheduler();
  const auto first = std::make_shared<CollectingSink>();
  REQUIRE(scheduler.submit(numbered_request(0, 2), first).ok());
  CHECK(first->wait().reason == FinishReason::kLength);
  stages.io(stage, rank).add_fault({.kind = IoRequest::Kind::kRead, .skip = skip, .error = EIO});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    if (!scheduler.submit(numbered_request(i, 20), sinks.back()).ok()) sinks.pop_back();
  }
  REQUIRE_FALSE(sinks.empty());
  bool told = false;
  for (const auto& sink : sinks) {
    const Finish finish = sink->wait();
    INFO(finish.status.message());
    CHECK(finish.reason == FinishReason::kError);
    told = told || finish.status.message().find(reason) != std::string::npos;
  }
  CHECK(told);
  CHECK_FALSE(scheduler.stats().healthy);
  CHECK(stages.end());
}

TEST_CASE("a rank of any stage that cannot read its weights is named, and none waits for it") {
  for (uint64_t skip = 0; skip < 24; skip += 3) {
    check_lost(0, 0, skip, "rank 1: ");
    check_lost(0, 1, skip, "rank 1: rank 1 of the 2 here: ");
    check_lost(1, 0, skip, "Input/output error");
    check_lost(1, 1, skip, "rank 1 of the 2 here: ");
  }
}

TEST_CASE("a request that a follower of another stage cannot hold is refused") {
  const ModelShape shape = test::tiny_shape(kLayers);
  StageTiers small;
  small.kv_bytes = kv_layout(rank_shape(shape, 1, 2).value(), Format::kF32).sequence_bytes(16);
  Stages stages(shape, {2}, chunked(), tiers_for(shape, 9), 2, small);
  const Status status = stages.scheduler()
                            .submit(numbered_request(4, 30), std::make_shared<CollectingSink>())
                            .status();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::StartsWith("rank 1: the sequence needs"));
}

}  // namespace
}  // namespace spillway::stages_of_ranks_test
