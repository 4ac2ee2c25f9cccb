// Shared beginnings where room is short: what fits alone is always finished, nothing is given up in
// vain, and nobody waits for what is there.
#include <algorithm>
#include <catch2/catch.hpp>

#include "scheduler/block_scheduler.h"
#include "scheduler/kv_room.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/engine_on_tiers.h"
#include "tests/support/fake_io.h"
#include "tests/support/gate_sink.h"
#include "tests/support/tiny_shape.h"

namespace spillway::kv_room_edges_test {
namespace {

using test::CollectingSink;
using test::FakeIo;
using test::GateSink;

struct Setup {
  int64_t positions = 1024;
  int64_t memory = 64, disk = 0, aside = 0;  // KV blocks of each layer
  int64_t prefill = 3000, block = 8;
  uint64_t prefix = UINT64_MAX;
};

ModelShape shape_of(const Setup& setup) {
  ModelShape shape = test::rotary_shape(3);
  shape.positions = setup.positions;
  return shape;
}

struct Fixture : test::EngineOnTiers {
  Fixture(const Setup& setup, FakeIo& io)
      : EngineOnTiers(shape_of(setup), options_of(setup), bytes_of(setup, shape_of(setup)), io) {}
  static SchedulerOptions options_of(const Setup& setup) {
    SchedulerOptions scheduling;
    scheduling.block_sequences_max = setup.block;
    scheduling.prefill_tokens_max = setup.prefill;
    scheduling.prefix_cache_bytes = setup.prefix;
    return scheduling;
  }
  static KvBytes bytes_of(const Setup& setup, const ModelShape& shape) {
    const KvLayout layout = kv_layout(shape, Format::kF32);
    const auto bytes = [&](int64_t blocks) {
      return static_cast<uint64_t>(blocks * shape.layers) * layout.block_bytes();
    };
    return {bytes(setup.memory), bytes(setup.disk), bytes(setup.aside),
            4 * layout.sequence_bytes(setup.positions)};
  }

  std::shared_ptr<CollectingSink> submit(Request request) const {
    const auto sink = std::make_shared<CollectingSink>();
    REQUIRE(scheduler->submit(std::move(request), sink).ok());
    return sink;
  }
  // Holds the engine in the middle of a sequence that goes on for long.
  std::shared_ptr<GateSink> hold(int32_t tokens) const;
};

const KvRuleChoice kFull = {};
const KvRuleChoice kH2o = {KvRuleKind::kH2o, KvAmount{10, 0}, KvAmount{12, 0}, {}, {}};

// Notes when its sequence ends.
class EndSink final : public TokenSink {
 public:
  EndSink(int number, std::vector<int>* ends) : number_(number), ends_(ends) {}
  AfterToken on_token(int32_t, const TokenLogprobs*) override { return AfterToken::kGoOn; }
  void on_finish(const Finish& finish) override {
    end = finish;
    ends_->push_back(number_);
  }
  Finish end;

 private:
  const int number_;
  std::vector<int>* const ends_;
};

// A prompt of two tokens, one after another, so often.
Request request_of(size_t count, int32_t token, size_t more, int32_t then, const KvRuleChoice& rule,
                   int32_t max_tokens = 4) {
  Request request;
  request.prompt.assign(count, token);
  request.prompt.insert(request.prompt.end(), more, then);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  request.kv = rule;
  return request;
}

std::shared_ptr<GateSink> Fixture::hold(int32_t tokens) const {
  const auto gate = std::make_shared<GateSink>();
  REQUIRE(scheduler->submit(request_of(3, 1, 0, 0, kFull, tokens), gate).ok());
  gate->wait_held();
  return gate;
}

TEST_CASE("a request whose beginning has no room beside it runs without one") {
  FakeIo io({.seed = 1});
  Fixture f({.positions = 256, .memory = 16, .prefill = 300}, io);
  f.start();
  for (int i = 0; i < 3; ++i) CHECK(f.submit(request_of(250, 5, 0, 0, kH2o))->wait().status.ok());
}

TEST_CASE("the rest behind a beginning and the last chunk of a long prompt fit one sweep") {
  FakeIo io({.seed = 1});
  Fixture f({.memory = 640, .prefill = 400}, io);
  f.start();
  f.submit(request_of(64, 5, 20, 6, kH2o))->wait();
  const auto gate = f.hold(40);
  const auto longer = f.submit(request_of(560, 7, 0, 0, kFull));
  const auto behind = f.submit(request_of(64, 5, 336, 8, kH2o));
  gate->open();
  CHECK(longer->wait().status.ok());
  CHECK(behind->wait().status.ok());
}

TEST_CASE("a short prompt waits for what it shares with a long one, not for its end") {
  FakeIo io({.seed = 1});
  Fixture f({.positions = 4096, .memory = 640, .prefill = 100}, io);
  f.start();
  const auto gate = f.hold(4000);
  std::vector<int> ends;  // In their order; the engine thread's until both are there.
  const auto longer = std::make_shared<EndSink>(1, &ends);
  const auto shorter = std::make_shared<EndSink>(2, &ends);
  REQUIRE(f.scheduler->submit(request_of(32, 5, 3000, 7, kFull, 1), longer).ok());
  REQUIRE(f.scheduler->submit(request_of(32, 5, 20, 8, kFull, 1), shorter).ok());
  gate->open();
  f.scheduler->drain(1e6);
  CHECK(ends == std::vector<int>{2, 1});
  CHECK(shorter->end.usage.cached_tokens == 32);
}

TEST_CASE("different beginnings are computed in one sweep") {
  FakeIo io({.seed = 1});
  Fixture f({.memory = 6400, .prefill = 8192, .block = 64}, io);
  f.start();
  const auto request = [](int32_t group, int32_t last) {
    return request_of(80, 10 + group, 20, last, kH2o, 1);
  };
  for (int32_t group = 0; group < 40; ++group) f.submit(request(group, 1))->wait();
  const auto gate = f.hold(3);
  const uint64_t before = f.scheduler->stats().sweeps;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int32_t group = 0; group < 40; ++group) sinks.push_back(f.submit(request(group, 2)));
  gate->open();
  for (const auto& sink : sinks) CHECK(sink->wait().status.ok());
  f.scheduler->drain(1e6);
  CHECK(f.scheduler->stats().sweeps - before <= 5);
}

TEST_CASE("a sequence that cannot grow on its tier comes back where it can") {
  FakeIo io({.seed = 1});
  Fixture f({.memory = 64, .disk = 32, .aside = 800}, io);
  f.start();
  CHECK(f.submit(request_of(900, 5, 0, 0, kFull, 1))->wait().status.ok());
  CHECK(f.submit(request_of(900, 5, 0, 0, kFull, 1))->wait().status.ok());
  CHECK(f.submit(request_of(300, 9, 0, 0, kFull, 700))->wait().status.ok());
}

// Sequences given room by hand.
struct Room {
  Room(const Setup& setup, uint64_t prefix_pages, FakeIo& io)
      : fixture(setup, io),
        room(*fixture.engine, prefix_pages * fixture.engine->kv().page_bytes()) {}

  std::unique_ptr<Sequence> make(size_t tokens, int32_t token) {
    Request request = request_of(tokens, token, 0, 0, kFull);
    SequenceKv promise;
    promise.positions = static_cast<int64_t>(tokens) + 3;
    promise.chunks = KvChunks(static_cast<int64_t>(tokens), 3000);
    return std::make_unique<Sequence>(RequestId{++last_id}, std::move(request),
                                      std::make_shared<CollectingSink>(), fixture.shape, promise, 0,
                                      0.0);
  }
  void admit(Sequence& sequence) {
    REQUIRE(room.admit(sequence, room.offer(sequence, 3000), 1, 0).ok());
  }
  void compute(Sequence& sequence) {
    admit(sequence);
    sequence.set_chunk(sequence.prompt_left());
    sequence.end_sweep();
    room.end_sweep(sequence);
  }
  int64_t pages(uint64_t bytes) const {
    return static_cast<int64_t>(bytes / fixture.engine->kv().page_bytes());
  }

  Fixture fixture;
  KvRoom room;
  uint64_t last_id = 0;
};

TEST_CASE("beginnings that nobody uses push nobody to a slower tier") {
  FakeIo io({.seed = 1});
  Room r({.memory = 64, .disk = 64}, 1000, io);
  const auto disk_layers = [&](int32_t token) {
    const auto sequence = r.make(300, token);
    r.admit(*sequence);
    const int64_t layers = sequence->kv()->disk_layers();
    r.room.release(*sequence);
    return layers;
  };
  const int64_t expected = disk_layers(9);
  for (int i = 0; i < 2; ++i) {  // The second has seen the first, and gets pages.
    const auto sequence = r.make(900, 5);
    r.compute(*sequence);
    r.room.release(*sequence);
  }
  CHECK(r.pages(r.room.prefix_bytes()) > 50);
  CHECK(disk_layers(10) == expected);
  CHECK(r.pages(r.room.prefix_bytes()) < 50);
}

TEST_CASE("beginnings take no more than their limit, and the oldest go for new ones") {
  FakeIo io({.seed = 1});
  Room r({.memory = 256}, 20, io);
  for (int32_t i = 0; i < 5; ++i) {
    const auto sequence = r.make(10 * 16 + 1, 10 + i);
    r.compute(*sequence);
    CHECK(sequence->prefix().blocks() == 10);
    r.room.release(*sequence);
    CHECK(r.pages(r.room.prefix_bytes()) == std::min(20, 10 * (i + 1)));
  }
  const auto last = r.make(10 * 16 + 1, 14), first = r.make(10 * 16 + 1, 10);
  CHECK(r.room.offer(*last, 0).cached == 160);
  CHECK(r.room.offer(*first, 0).cached == 0);
}

TEST_CASE("a beginning that exceeds the limit beside those in use evicts nothing") {
  FakeIo io({.seed = 1});
  Room r({.memory = 256}, 60, io);
  const auto running = r.make(30 * 16 + 1, 5);
  r.compute(*running);
  for (int32_t i = 0; i < 3; ++i) {
    const auto sequence = r.make(10 * 16 + 1, 10 + i);
    r.compute(*sequence);
    r.room.release(*sequence);
  }
  CHECK(r.pages(r.room.prefix_bytes()) == 60);
  const auto large = r.make(40 * 16 + 1, 20);
  r.compute(*large);
  CHECK(large->prefix().empty());
  CHECK(r.pages(r.room.prefix_bytes()) == 60);
  CHECK(r.pages(r.room.prefix_used_bytes()) == 30);
  r.room.release(*large);
  r.room.release(*running);
}

}  // namespace
}  // namespace spillway::kv_room_edges_test
