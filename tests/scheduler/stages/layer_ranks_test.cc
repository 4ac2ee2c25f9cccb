// A scheduler over ranks that share every layer: what goes wrong on one is told with its name, and
// holds up none. (That the tokens are those of a whole model: endtoend/ranks_test.cc.)
#include "scheduler/stages/layer_ranks.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <new>
#include <thread>

#include "kernels/base/rank_shape.h"
#include "kernels/ranks/thread_ranks.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/stages.h"
#include "tests/support/tiny_shape.h"

namespace spillway::layer_ranks_test {
namespace {

using test::CollectingSink;
using test::IoFault;
using test::numbered_request;
using test::StageEngine;
using test::StageTiers;

SchedulerOptions options_of() {
  SchedulerOptions options;
  options.block_sequences_max = 8;
  options.prefill_tokens_max = 24;  // Longer prompts go in chunks.
  return options;
}

// Two ranks of a tiny model on threads of this process.
class Ranks {
 public:
  explicit Ranks(const StageTiers& tiers, const StageTiers& second_tiers) {
    const int64_t tokens = sweep_tokens_max(shape_, options_of());
    for (int rank = 0; rank < 2; ++rank) {
      engines_.push_back(std::make_unique<StageEngine>(
          rank_shape(shape_, rank, 2).value(), all_layers(shape_), tokens,
          rank == 0 ? tiers : second_tiers, groups_[static_cast<size_t>(rank)].get()));
    }
    caches_ = {engines_[1]->engine->kv().options()};
  }
  explicit Ranks(const StageTiers& tiers) : Ranks(tiers, tiers) {}
  ~Ranks() { end(); }

  test::FakeIo& io(size_t rank) { return engines_[rank]->io; }
  Scheduler& start() {
    follower_ =
        std::thread([this] { followed_ = run_stage(*mail_[1], *engines_[1]->engine).ok(); });
    scheduler_ = start_scheduler(std::move(engines_[0]->engine), options_of(), {},
                                 layer_ranks(*mail_[0], *groups_[0], caches_).value());
    return *scheduler_;
  }

  // False: the rank that follows had an error of its own.
  bool end() {
    scheduler_.reset();
    if (follower_.joinable()) follower_.join();
    return followed_;
  }

 private:
  const ModelShape shape_ = test::tiny_shape(3);
  std::vector<std::unique_ptr<RankGroup>> groups_ = thread_ranks(2);
  std::vector<std::unique_ptr<RankMail>> mail_ = thread_mail(2);
  std::vector<std::unique_ptr<StageEngine>> engines_;
  std::vector<KvCacheOptions> caches_;
  std::atomic<bool> followed_ = true;
  std::unique_ptr<Scheduler> scheduler_;
  std::thread follower_;
};

StageTiers room_for(int64_t sequences) {
  ModelShape shape = rank_shape(test::tiny_shape(3), 0, 2).value();
  const uint64_t longest = kv_layout(shape, Format::kF32).sequence_bytes(64);
  return {.kv_bytes = static_cast<uint64_t>(sequences) * longest};
}

TEST_CASE("ranks run what they are given, in memory and on disk, and end") {
  StageTiers tiers = room_for(9);
  tiers.on_disk = GENERATE(false, true);
  Ranks ranks(tiers);
  Scheduler& scheduler = ranks.start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 13; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    REQUIRE(scheduler.submit(numbered_request(i, 4 + i % 7), sinks.back()).ok());
  }
  for (const auto& sink : sinks) {
    const Finish finish = sink->wait();
    INFO(finish.status.message());
    CHECK(finish.reason == FinishReason::kLength);
  }
  CHECK(scheduler.stats().kv_bytes_used == 0);
  CHECK(ranks.end());
}

TEST_CASE("a cancelled sequence of ranks leaves, and what is under way at the end is cancelled") {
  Ranks ranks(room_for(9));
  Scheduler& scheduler = ranks.start();
  const auto stays = std::make_shared<CollectingSink>(),
             leaves = std::make_shared<CollectingSink>();
  const auto id = scheduler.submit(numbered_request(1, 50), leaves);
  REQUIRE(scheduler.submit(numbered_request(2, 45), stays).ok());
  leaves->wait_tokens(2);
  scheduler.cancel(id.value());
  CHECK(leaves->wait().reason == FinishReason::kCancelled);
  stays->wait_tokens(4);
  CHECK(ranks.end());
  const FinishReason reason = stays->wait().reason;
  CHECK((reason == FinishReason::kCancelled || reason == FinishReason::kLength));
}

// A sweep that fails on one rank, after some that did not: all its sequences end, with the reason.
// `skip`: reads that go well before, so that it fails at any layer, or at the head.
void check_lost(size_t failing, uint64_t skip, const std::string& reason) {
  INFO("rank " << failing << ", after " << skip << " reads");
  StageTiers tiers = room_for(9);
  tiers.on_disk = true;
  Ranks ranks(tiers);
  Scheduler& scheduler = ranks.start();
  const auto first = std::make_shared<CollectingSink>();
  REQUIRE(scheduler.submit(numbered_request(0, 2), first).ok());
  CHECK(first->wait().reason == FinishReason::kLength);
  ranks.io(failing).add_fault({.kind = IoRequest::Kind::kRead, .skip = skip, .error = EIO});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    // The first that fails may do so before the others come.
    if (!scheduler.submit(numbered_request(i, 20), sinks.back()).ok()) sinks.pop_back();
  }
  REQUIRE_FALSE(sinks.empty());
  for (const auto& sink : sinks) {
    const Finish finish = sink->wait();
    CHECK(finish.reason == FinishReason::kError);
    // Of a cache that cannot be read, before weights cannot, the sequence alone ends.
    const Code code = finish.status.code();
    CHECK((code == Code::kDeviceLost || code == Code::kIoError));
    CHECK_THAT(std::string(finish.status.message()), Catch::Contains(reason));
  }
  CHECK_FALSE(scheduler.stats().healthy);
  CHECK_FALSE(scheduler.submit(numbered_request(0, 5), std::make_shared<CollectingSink>()).ok());
  CHECK(ranks.end());
}

TEST_CASE("when a rank cannot read its weights all learn why, and none waits for it") {
  for (uint64_t skip = 0; skip < 40; ++skip) check_lost(1, skip, "rank 1: ");
}

TEST_CASE("when the first rank cannot read its weights the others do not wait for it") {
  for (uint64_t skip = 0; skip < 40; ++skip) check_lost(0, skip, "Input/output error");
}

TEST_CASE("when memory runs out on the first rank in a sweep the others do not wait for it") {
  struct Throws final : TokenSink {
    AfterToken on_token(int32_t, const TokenLogprobs*) override { throw std::bad_alloc(); }
    void on_finish(const Finish& finish) override { finished.set_value(finish); }
    std::promise<Finish> finished;
  };
  Ranks ranks(room_for(9));
  Scheduler& scheduler = ranks.start();
  const auto sink = std::make_shared<Throws>();
  REQUIRE(scheduler.submit(numbered_request(1, 5), sink).ok());
  const Finish finish = sink->finished.get_future().get();
  CHECK(finish.reason == FinishReason::kError);
  CHECK_THAT(std::string(finish.status.message()), Catch::Contains("bad_alloc"));
  CHECK_FALSE(scheduler.submit(numbered_request(1, 5), std::make_shared<CollectingSink>()).ok());
  CHECK(ranks.end());
}

TEST_CASE("a sequence whose cache cannot be read on another rank ends, and the others go on") {
  StageTiers on_disk = room_for(9);
  on_disk.kv_on_disk = true;
  Ranks ranks(room_for(9), on_disk);
  Scheduler& scheduler = ranks.start();
  // Where the first sequence's cache begins, read and read again.
  ranks.io(1).add_fault({.kind = IoRequest::Kind::kRead, .begin = 0, .end = 1, .count = 2});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    REQUIRE(scheduler.submit(numbered_request(4, 12), sinks.back()).ok());
  }
  int failed = 0;
  for (const auto& sink : sinks) {
    const Finish finish = sink->wait();
    if (finish.reason == FinishReason::kLength) continue;
    ++failed;
    CHECK(finish.reason == FinishReason::kError);
    CHECK_THAT(std::string(finish.status.message()), Catch::StartsWith("rank 1: "));
  }
  CHECK(failed == 1);
  CHECK(scheduler.stats().healthy);
  CHECK(ranks.end());
}

TEST_CASE("a request that another rank's cache cannot hold is refused with its name") {
  StageTiers small = room_for(9);
  small.kv_bytes =
      kv_layout(rank_shape(test::tiny_shape(3), 1, 2).value(), Format::kF32).sequence_bytes(16);
  Ranks ranks(room_for(9), small);
  Scheduler& scheduler = ranks.start();
  const Status status =
      scheduler.submit(numbered_request(4, 30), std::make_shared<CollectingSink>()).status();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::StartsWith("rank 1: the sequence needs"));
}

}  // namespace
}  // namespace spillway::layer_ranks_test
