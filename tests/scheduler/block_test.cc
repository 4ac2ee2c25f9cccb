// Who gives way to whom in the block: a client with nothing in it begins although another has
// filled it, and what is set aside for that loses nothing.
#include "scheduler/block.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "scheduler/block_scheduler.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/engine_on_tiers.h"
#include "tests/support/fake_io.h"
#include "tests/support/tiny_shape.h"

namespace spillway::block_test {
namespace {

using test::CollectingSink;
using test::FakeIo;
using test::IoFault;

constexpr int64_t kPositions = 256;
constexpr int64_t kPlaces = 8;

ModelShape shape_of_tests() {
  ModelShape shape = test::tiny_shape();
  shape.positions = kPositions;
  return shape;
}

// Lets its sequence pass one token at a time: what a test does between two of them happens in the
// middle of a sweep.
class StepSink final : public TokenSink {
 public:
  AfterToken on_token(int32_t, const TokenLogprobs*) override {
    std::unique_lock lock(mutex_);
    ++tokens_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return tokens_ <= allowed_; });
    return AfterToken::kGoOn;
  }
  void on_finish(const Finish&) override {}

  // Lets the tokens before this one pass, and waits until the engine is held at it.
  void hold_at(int64_t token) {
    std::unique_lock lock(mutex_);
    allowed_ = token - 1;
    changed_.notify_all();
    changed_.wait(lock, [&] { return tokens_ >= token; });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    allowed_ = INT64_MAX;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t tokens_ = 0, allowed_ = 0;
};

// Notes after how many sweeps its sequence began.
class BeginSink final : public TokenSink {
 public:
  explicit BeginSink(const Scheduler& scheduler) : scheduler_(scheduler) {}
  void on_admitted() override {
    const uint64_t sweeps = scheduler_.stats().sweeps;
    const std::lock_guard lock(mutex_);
    began_ = sweeps;
  }
  AfterToken on_token(int32_t, const TokenLogprobs*) override { return AfterToken::kGoOn; }
  void on_finish(const Finish& finish) override {
    const std::lock_guard lock(mutex_);
    finish_ = finish;
    changed_.notify_all();
  }
  uint64_t wait_began() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finish_.has_value(); });
    REQUIRE(finish_->status.ok());
    return began_.value();
  }

 private:
  const Scheduler& scheduler_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<uint64_t> began_;
  std::optional<Finish> finish_;
};

Request request_of(uint64_t client, int32_t max_tokens, int32_t priority = 0, int32_t first = 1) {
  Request request;
  request.prompt = {first, 7, 9};
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  request.client = client;
  request.priority = priority;
  return request;
}

struct Fixture : test::EngineOnTiers {
  // `aside`: the longest sequences for which there is scratch space; 0: none is set aside.
  // `memory`: those that the cache holds.
  explicit Fixture(FakeIo& io, int64_t aside = 40, int64_t memory = 40)
      : EngineOnTiers(shape_of_tests(), options(), bytes(aside, memory), io) {
    start();
  }
  ~Fixture() { gate->let_go(); }
  static SchedulerOptions options() {
    SchedulerOptions scheduling;
    scheduling.block_sequences_max = kPlaces;
    scheduling.prefill_tokens_max = 200;
    return scheduling;
  }
  static KvBytes bytes(int64_t aside, int64_t memory) {
    const ModelShape shape = shape_of_tests();
    const uint64_t layer = kv_layout(shape, Format::kF32).sequence_bytes(kPositions);
    const auto of = [&](int64_t sequences) {
      return static_cast<uint64_t>(sequences * shape.layers) * layer;
    };
    return {of(memory), 0, of(aside), 4 * layer};
  }

  std::shared_ptr<CollectingSink> submit(const Request& request) {
    auto sink = std::make_shared<CollectingSink>();
    REQUIRE(scheduler->submit(request, sink).ok());
    return sink;
  }

  // Fills the block with sequences of client 1, and holds the engine in a sweep of theirs.
  void fill(int32_t priority, int64_t more = 3 * kPlaces) {
    REQUIRE(scheduler->submit(request_of(1, 100, priority), gate).ok());
    gate->hold_at(1);
    for (int64_t i = 1; i <= more; ++i) {
      const auto first = static_cast<int32_t>(1 + i % 90);
      hogs.push_back(submit(request_of(1, 60, priority, first)));
    }
    gate->hold_at(2);
  }

  // The sequences that fill() submitted have the tokens of a run alone.
  void check_hogs() {
    FakeIo quiet({.seed = 1});
    Fixture alone(quiet);
    for (size_t i = 0; i < hogs.size(); ++i) {
      CHECK(hogs[i]->wait().status.ok());
      const auto first = static_cast<int32_t>(1 + (i + 1) % 90);
      const auto expected = alone.submit(request_of(1, 60, 0, first));
      expected->wait();
      CHECK(hogs[i]->tokens == expected->tokens);
    }
  }

  std::shared_ptr<BeginSink> ask(const Request& request) {
    auto sink = std::make_shared<BeginSink>(*scheduler);
    REQUIRE(scheduler->submit(request, sink).ok());
    return sink;
  }

  std::shared_ptr<StepSink> gate = std::make_shared<StepSink>();
  std::vector<std::shared_ptr<CollectingSink>> hogs;
};

TEST_CASE("a client with nothing in a block that another has filled begins within two sweeps") {
  FakeIo io({.seed = 1});
  Fixture f(io);
  f.fill(0);
  CHECK(f.scheduler->stats().running == kPlaces);
  const uint64_t asked = f.scheduler->stats().sweeps;
  const auto second = f.ask(request_of(2, 5)), third = f.ask(request_of(3, 5));
  f.gate->let_go();
  CHECK(second->wait_began() - asked <= 2);
  CHECK(third->wait_began() - asked <= 2);
  f.check_hogs();
  CHECK(f.scheduler->stats().set_aside >= 2);
  f.scheduler->drain(1e6);
  CHECK(f.scheduler->stats().kv_bytes_used == 0);
}

TEST_CASE("room in the cache is made for a client with nothing in the block, too") {
  FakeIo io({.seed = 1});
  Fixture f(io, 40, 2);  // Two of the longest: the eight soon fill it.
  f.fill(0);
  f.gate->hold_at(40);
  const uint64_t asked = f.scheduler->stats().sweeps;
  Request long_prompt = request_of(2, 5);
  long_prompt.prompt.assign(150, 3);
  const auto second = f.ask(long_prompt);
  f.gate->let_go();
  CHECK(second->wait_began() - asked <= 2);
  f.check_hogs();
}

TEST_CASE("a client that is alone loses nothing") {
  FakeIo io({.seed = 1});
  Fixture f(io);
  f.fill(0);
  const auto late = f.ask(request_of(1, 5)), urgent = f.ask(request_of(1, 5, -1));
  f.gate->let_go();
  CHECK(urgent->wait_began() < late->wait_began());
  f.check_hogs();
  CHECK(f.scheduler->stats().set_aside == 0);
}

TEST_CASE("whoever has a sequence in the block waits for a place like the others") {
  FakeIo io({.seed = 1});
  Fixture f(io);
  f.fill(0);
  std::vector<std::shared_ptr<BeginSink>> asked;
  for (int i = 0; i < 6; ++i) asked.push_back(f.ask(request_of(2, 100)));
  f.gate->let_go();
  for (const auto& sink : asked) sink->wait_began();
  f.check_hogs();
  CHECK(f.scheduler->stats().set_aside == 1);
}

TEST_CASE("requests of a lower class give their places to all others, and go on behind them") {
  constexpr int32_t kLow = 1'000'000;
  FakeIo io({.seed = 1});
  Fixture f(io);
  f.fill(kLow);
  const uint64_t asked = f.scheduler->stats().sweeps;
  std::vector<std::shared_ptr<BeginSink>> others;
  for (int i = 0; i < kPlaces; ++i) others.push_back(f.ask(request_of(2, 20)));
  f.gate->let_go();
  for (const auto& sink : others) CHECK(sink->wait_began() - asked <= 2);
  f.check_hogs();
  CHECK(f.scheduler->stats().set_aside == static_cast<uint64_t>(kPlaces));
}

TEST_CASE("where nobody can be set aside a place is kept, once there are several clients") {
  FakeIo io({.seed = 1});
  Fixture f(io, 0);
  SECTION("one client") {
    f.fill(0);
    CHECK(f.scheduler->stats().running == kPlaces);
    f.gate->let_go();
  }
  SECTION("two clients") {
    f.submit(request_of(2, 1))->wait();
    f.fill(0);
    CHECK(f.scheduler->stats().running == kPlaces - 1);
    const uint64_t asked = f.scheduler->stats().sweeps;
    const auto second = f.ask(request_of(2, 5));
    f.gate->let_go();
    CHECK(second->wait_began() - asked <= 2);
  }
  f.check_hogs();
}

TEST_CASE("a sequence that cannot be moved goes on where it is") {
  FakeIo io({.seed = 1});
  Fixture f(io);
  f.fill(0);
  io.add_fault({.effect = IoFault::Effect::kError, .kind = IoRequest::Kind::kWrite, .error = EIO});
  const auto second = f.ask(request_of(2, 5));
  f.gate->let_go();
  second->wait_began();
  f.check_hogs();
  CHECK(f.scheduler->stats().set_aside == 0);
}

}  // namespace
}  // namespace spillway::block_test
