// The scheduler over a real engine with small random weights: admission, limits, endings,
// cancellation, draining.
#include "scheduler/block_scheduler.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <new>
#include <thread>

#include "tests/support/collecting_sink.h"
#include "tests/support/gate_sink.h"
#include "tests/support/tiny_shape.h"

namespace spillway::block_scheduler_test {
namespace {

using test::CollectingSink;
using test::GateSink;
using test::tiny_shape;

struct Fixture {
  explicit Fixture(SchedulerOptions options = {}, int64_t kv_sequences = 8,
                   const ModelShape& shape = tiny_shape(), int threads = 2)
      : device(open_cpu_device(threads).value()),
        weights(WeightStore::dummy(*device, shape, Format::kF32, 1, {}).value()) {
    EngineOptions engine;
    engine.sweep_tokens_max = sweep_tokens_max(shape, options);
    engine.kv_bytes = kv_layout(tiny_shape(), Format::kF32).sequence_bytes(64) * 2 *
                      static_cast<uint64_t>(kv_sequences);
    scheduler = start_scheduler(Engine::open(*device, *weights, engine).value(), options);
  }
  std::shared_ptr<CollectingSink> submit(Request request) {
    auto sink = std::make_shared<CollectingSink>();
    const auto id = scheduler->submit(std::move(request), sink);
    INFO(id.status().message());
    REQUIRE(id.ok());
    last_id = id.value();
    return sink;
  }
  // Its sequence holds the engine thread at its first token.
  std::shared_ptr<GateSink> hold(Request request) {
    auto sink = std::make_shared<GateSink>();
    const auto id = scheduler->submit(std::move(request), sink);
    REQUIRE(id.ok());
    last_id = id.value();
    sink->wait_held();
    return sink;
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Scheduler> scheduler;
  RequestId last_id{};
};

Request greedy(std::vector<int32_t> prompt, int32_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  return request;
}

Status refusal(Scheduler& scheduler, Request request) {
  return scheduler.submit(std::move(request), std::make_shared<CollectingSink>()).status();
}

TEST_CASE("a request ends at max_tokens and reports its usage") {
  Fixture f;
  const auto sink = f.submit(greedy({5, 6, 7}, 10));
  const Finish finish = sink->wait();
  CHECK(finish.reason == FinishReason::kLength);
  CHECK(sink->tokens.size() == 10);
  CHECK(finish.usage.prompt_tokens == 3);
  CHECK(finish.usage.generated_tokens == 10);
}

TEST_CASE("the last legal position is used and the first illegal one refused") {
  Fixture f;
  CHECK(f.submit(greedy(std::vector<int32_t>(60, 3), 4))->wait().reason == FinishReason::kLength);
  CHECK(f.submit(greedy(std::vector<int32_t>(64, 3), 0))->wait().reason == FinishReason::kLength);
  CHECK(refusal(*f.scheduler, greedy(std::vector<int32_t>(60, 3), 5)).code() ==
        Code::kInvalidArgument);
  CHECK(refusal(*f.scheduler, greedy(std::vector<int32_t>(65, 3), 0)).code() ==
        Code::kInvalidArgument);
}

TEST_CASE("bad requests are refused with a reason") {
  Fixture f;
  for (const Request& bad : {greedy({}, 1), greedy({100}, 1), greedy({-1}, 1), greedy({1}, -1)}) {
    const Status status = refusal(*f.scheduler, bad);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(!status.message().empty());
  }
  Request more_than_all = greedy({1}, 3);
  more_than_all.min_tokens = 4;
  CHECK(refusal(*f.scheduler, more_than_all).code() == Code::kInvalidArgument);
}

TEST_CASE("a stop token ends the sequence, is its last token, and waits for min_tokens") {
  Fixture f;
  const auto free = f.submit(greedy({9, 8}, 12));
  free->wait();
  Request stopped = greedy({9, 8}, 12);
  stopped.stop_tokens = {free->tokens[4]};
  size_t first = 0;
  while (free->tokens[first] != free->tokens[4]) ++first;
  const auto sink = f.submit(stopped);
  const Finish finish = sink->wait();
  CHECK(finish.reason == FinishReason::kStop);
  CHECK(finish.stop_token == free->tokens[4]);
  CHECK(sink->tokens.size() == first + 1);
  CHECK(sink->tokens.back() == free->tokens[4]);
  CHECK(finish.usage.generated_tokens == static_cast<int64_t>(first) + 1);
  CHECK(f.scheduler->stats().generated_tokens == 12 + first + 1);

  stopped.min_tokens = 12;
  const auto patient = f.submit(stopped);
  CHECK(patient->wait().reason == FinishReason::kLength);
  CHECK(patient->tokens.size() == 12);
  for (int32_t token : patient->tokens) CHECK(token != free->tokens[4]);
}

TEST_CASE("a sink that wants no more ends its sequence at once") {
  Fixture f;
  auto sink = std::make_shared<CollectingSink>(3);
  REQUIRE(f.scheduler->submit(greedy({1, 2}, 40), sink).ok());
  CHECK(sink->wait().reason == FinishReason::kStop);
  CHECK(sink->tokens.size() == 3);
}

TEST_CASE("a sink that nobody listens to any more is cancelled, and no latency is counted") {
  Fixture f;
  auto sink = std::make_shared<CollectingSink>(3, AfterToken::kCancel);
  REQUIRE(f.scheduler->submit(greedy({1, 2}, 40), sink).ok());
  const Finish finish = sink->wait();
  CHECK(finish.reason == FinishReason::kCancelled);
  CHECK(finish.status.code() == Code::kCancelled);
  // Nor when the token was the last one, or a stop token.
  sink = std::make_shared<CollectingSink>(1, AfterToken::kCancel);
  REQUIRE(f.scheduler->submit(greedy({1, 2}, 1), sink).ok());
  CHECK(sink->wait().reason == FinishReason::kCancelled);
  Request stopped = greedy({1, 2}, 40);
  stopped.stop_tokens = {sink->tokens[0]};
  sink = std::make_shared<CollectingSink>(1, AfterToken::kCancel);
  REQUIRE(f.scheduler->submit(stopped, sink).ok());
  CHECK(sink->wait().reason == FinishReason::kCancelled);
  CHECK(f.scheduler->stats().ended == std::array<uint64_t, kFinishReasons>{0, 0, 3, 0});
  CHECK(f.scheduler->stats().times.whole.count() == 0);
}

TEST_CASE("only ids of the sampling vocabulary are generated") {
  SchedulerOptions options;
  options.sampling_vocabulary = 5;
  Fixture f(options);
  const auto sink = f.submit(greedy({50, 60}, 30));
  sink->wait();
  for (int32_t token : sink->tokens) CHECK(token < 5);
}

// Notes who is admitted.
class OrderSink final : public TokenSink {
 public:
  OrderSink(std::vector<int>* order, int me) : order_(order), me_(me) {}
  void on_admitted() override { order_->push_back(me_); }
  AfterToken on_token(int32_t, const TokenLogprobs*) override { return AfterToken::kGoOn; }
  void on_finish(const Finish&) override {}

 private:
  std::vector<int>* order_;  // The engine thread's, until all is drained
  int me_;
};

TEST_CASE("a full queue answers at once and drains in order of priority") {
  SchedulerOptions options;
  options.queue_max = 4;
  options.block_sequences_max = 1;
  Fixture f(options);
  const auto held = f.hold(greedy({1}, 60));
  Request late = greedy({2}, 1), early = greedy({3}, 1), last = greedy({4}, 1);
  late.priority = 1;
  last.priority = 2;
  std::vector<int> order;
  REQUIRE(f.scheduler->submit(late, std::make_shared<OrderSink>(&order, 2)).ok());
  REQUIRE(f.scheduler->submit(early, std::make_shared<OrderSink>(&order, 1)).ok());
  REQUIRE(f.scheduler->submit(late, std::make_shared<OrderSink>(&order, 3)).ok());
  const auto emptied = f.submit(last);
  CHECK(f.scheduler->stats().running == 1);
  CHECK(f.scheduler->stats().waiting == 4);
  CHECK(refusal(*f.scheduler, greedy({5}, 1)).code() == Code::kCapacity);
  held->open();
  CHECK(held->wait().reason == FinishReason::kLength);
  CHECK(emptied->wait().reason == FinishReason::kLength);
  CHECK(f.submit(greedy({5}, 1))->wait().reason == FinishReason::kLength);  // There is room again.
  f.scheduler->drain(1e6);
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("a client's request waits for one of each other client's, not for all that they sent") {
  SchedulerOptions options;
  options.block_sequences_max = 1;
  Fixture f(options);
  const auto held = f.hold(greedy({1}, 2));
  std::vector<int> order;
  const auto submit = [&](int me, uint64_t client) {
    Request request = greedy({2}, 1);
    request.client = client;
    REQUIRE(f.scheduler->submit(request, std::make_shared<OrderSink>(&order, me)).ok());
  };
  for (int i = 0; i < 6; ++i) submit(10 + i, 1);
  submit(20, 2);
  submit(21, 2);
  submit(30, 3);
  CHECK(f.scheduler->stats().waiting == 9);
  held->open();
  f.scheduler->drain(1e6);
  CHECK(order == std::vector<int>{10, 20, 30, 11, 21, 12, 13, 14, 15});
}

TEST_CASE("a request that does not fit yet is not overtaken by smaller ones that would") {
  std::vector<int> order;
  {
    Fixture f({}, 2);  // 128 positions
    const auto held = f.hold(greedy(std::vector<int32_t>(20, 1), 28));
    const auto submit = [&](int me, size_t prompt, int32_t max_tokens) {
      const auto sink = std::make_shared<OrderSink>(&order, me);
      REQUIRE(f.scheduler->submit(greedy(std::vector<int32_t>(prompt, 1), max_tokens), sink).ok());
    };
    submit(1, 20, 28);                              // Fits beside it: 96 positions are taken.
    submit(2, 40, 24);                              // Needs 64.
    for (int i = 3; i < 40; ++i) submit(i, 4, 12);  // 16 each, of which two would fit at once
    held->open();
    f.scheduler->drain(1e6);
  }
  std::vector<int> arrival(39);
  for (int i = 0; i < 39; ++i) arrival[static_cast<size_t>(i)] = i + 1;
  CHECK(order == arrival);
}

TEST_CASE(
    "cancelling ends a sequence before its next token, running or waiting, and frees its memory") {
  SchedulerOptions options;
  options.block_sequences_max = 1;
  Fixture f(options);
  const auto running = f.hold(greedy({1}, 60));
  const RequestId running_id = f.last_id;
  const auto waiting = f.submit(greedy({2}, 60));
  const RequestId waiting_id = f.last_id;
  const auto untouched = f.submit(greedy({3}, 5));
  f.scheduler->cancel(waiting_id);
  f.scheduler->cancel(running_id);
  f.scheduler->cancel(RequestId{4711});
  running->open();
  CHECK(waiting->wait().reason == FinishReason::kCancelled);
  CHECK(waiting->wait().status.code() == Code::kCancelled);
  CHECK(waiting->tokens.empty());
  CHECK(running->wait().reason == FinishReason::kCancelled);
  CHECK(running->tokens() == 1);
  CHECK(untouched->wait().reason == FinishReason::kLength);
  f.scheduler->drain(10);
  CHECK(f.scheduler->stats().kv_bytes_used == 0);
  CHECK(f.scheduler->stats().ended == std::array<uint64_t, kFinishReasons>{0, 1, 2, 0});
  CHECK(f.scheduler->stats().times.whole.count() == 1);
}

TEST_CASE("cancelling what is not there does not touch what comes later") {
  Fixture f;
  // Ids are given one after another: these are of requests that do not exist yet. An engine that
  // has nothing to do takes nobody's cancellations, so they would pile up.
  for (uint64_t id = 1; id <= 3; ++id) f.scheduler->cancel(RequestId{id});
  for (int i = 0; i < 3; ++i) {
    CHECK(f.submit(greedy({1}, 3))->wait().reason == FinishReason::kLength);
  }
}

// Holds the engine thread at its token, looks at the statistics when it hears of its end, and takes
// its time for that.
class SlowEndSink final : public TokenSink {
 public:
  explicit SlowEndSink(Scheduler& scheduler) : scheduler_(scheduler) {}
  AfterToken on_token(int32_t token, const TokenLogprobs* logprobs) override {
    return gate.on_token(token, logprobs);
  }
  void on_finish(const Finish& finish) override {
    waiting = scheduler_.stats().waiting;
    gate.on_finish(finish);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ended = true;
  }

  GateSink gate;
  std::atomic<int64_t> waiting{-1};  // When it began to hear of its end
  std::atomic<bool> ended{false};

 private:
  Scheduler& scheduler_;
};

TEST_CASE("draining waits until the last sink has heard of its end") {
  Fixture f;
  const double seconds = GENERATE(0.0, 1e6);
  const auto last = std::make_shared<SlowEndSink>(*f.scheduler);
  last->gate.open();
  REQUIRE(f.scheduler->submit(greedy({1}, 1), last).ok());
  last->gate.wait();  // It runs no more, and hears so now.
  f.scheduler->drain(seconds);
  CHECK(last->ended);
}

TEST_CASE("what came in during a sweep counts as waiting, also when all that ran has ended") {
  Fixture f;
  const auto held = std::make_shared<SlowEndSink>(*f.scheduler);
  REQUIRE(f.scheduler->submit(greedy({1}, 1), held).ok());
  held->gate.wait_held();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int32_t i = 0; i < 3; ++i) sinks.push_back(f.submit(greedy({2 + i}, 2)));
  CHECK(f.scheduler->stats().waiting == 3);
  held->gate.open();
  f.scheduler->drain(1e6);  // Not before those three
  CHECK(held->waiting == 3);
  for (const auto& sink : sinks) CHECK(sink->wait().reason == FinishReason::kLength);
}

TEST_CASE("draining refuses new requests, then cancels what takes too long") {
  ModelShape shape = tiny_shape(1);
  shape.positions = 21000;
  SchedulerOptions options;
  options.kv_rule = {KvRuleKind::kWindow, {0, 0}, {27, 0}, 0, false};
  Fixture f(options, 1, shape);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int32_t i = 0; i < 40; ++i) sinks.push_back(f.submit(greedy({i}, 20000)));
  f.scheduler->drain(0);
  CHECK(refusal(*f.scheduler, greedy({1}, 1)).code() == Code::kCancelled);
  for (const auto& sink : sinks) {
    CHECK(sink->wait().reason == FinishReason::kCancelled);
    CHECK(sink->tokens.size() < 20000);
  }
  const SchedulerStats stats = f.scheduler->stats();
  CHECK(stats.running + stats.waiting == 0);
  CHECK(stats.kv_bytes_used == 0);
}

TEST_CASE("a drain with time lets what runs and waits end by itself") {
  Fixture f;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int32_t i = 0; i < 40; ++i) sinks.push_back(f.submit(greedy({i}, 9)));
  f.scheduler->drain(1e6);
  for (const auto& sink : sinks) CHECK(sink->wait().reason == FinishReason::kLength);
}

TEST_CASE("statistics tell how long work has been there without the end of a sweep") {
  Fixture f;
  CHECK(f.scheduler->stats().stalled_seconds == 0);
  const auto held = f.hold(greedy({1}, 3));
  const double before = f.scheduler->stats().stalled_seconds;
  CHECK(before > 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(f.scheduler->stats().stalled_seconds >= before + 0.02);
  held->open();
  f.scheduler->drain(1e6);
  CHECK(f.scheduler->stats().stalled_seconds == 0);
}

// Notes how far its prompt is, and has no memory for that.
class ProgressSink final : public TokenSink {
 public:
  explicit ProgressSink(std::vector<int64_t>* seen) : seen_(seen) {}
  void on_prompt_progress(int64_t tokens) override {
    seen_->push_back(tokens);
    throw std::bad_alloc();
  }
  AfterToken on_token(int32_t, const TokenLogprobs*) override { return AfterToken::kGoOn; }
  void on_finish(const Finish& finish) override { reason = finish.reason; }
  FinishReason reason = FinishReason::kError;

 private:
  std::vector<int64_t>* seen_;
};

TEST_CASE("a prompt that goes in chunks tells how far it is") {
  SchedulerOptions options;
  options.prefill_tokens_max = 8;
  std::vector<int64_t> seen;
  Fixture f(options);
  const auto sink = std::make_shared<ProgressSink>(&seen);
  REQUIRE(f.scheduler->submit(greedy(std::vector<int32_t>(30, 7), 3), sink).ok());
  f.scheduler->drain(1e6);
  CHECK(sink->reason == FinishReason::kLength);
  REQUIRE(seen.size() >= 4);
  CHECK(seen.front() == 0);
  CHECK(seen[1] == 8);
  CHECK(std::is_sorted(seen.begin(), seen.end()));
  CHECK(seen.back() < 30);
}

// Runs out of memory when it is admitted, or when it hears of its end.
class PoorSink final : public TokenSink {
 public:
  explicit PoorSink(bool at_admission) : at_admission_(at_admission) {}
  void on_admitted() override {
    if (at_admission_) throw std::bad_alloc();
  }
  AfterToken on_token(int32_t, const TokenLogprobs*) override { return AfterToken::kGoOn; }
  void on_finish(const Finish& finish) override {
    reason = finish.reason;
    code = finish.status.code();
    if (!at_admission_) throw std::bad_alloc();
  }
  FinishReason reason = FinishReason::kStop;
  Code code = Code::kOk;

 private:
  const bool at_admission_;
};

TEST_CASE("running out of memory outside of a sweep ends that request alone") {
  Fixture f;
  const auto held = f.hold(greedy({9}, 4));
  const auto first = f.submit(greedy({1}, 5));
  const auto admitted = std::make_shared<PoorSink>(true), ended = std::make_shared<PoorSink>(false);
  REQUIRE(f.scheduler->submit(greedy({2}, 5), admitted).ok());
  REQUIRE(f.scheduler->submit(greedy({3}, 5), ended).ok());
  const auto last = f.submit(greedy({4}, 5));
  held->open();
  CHECK(first->wait().reason == FinishReason::kLength);
  CHECK(last->wait().reason == FinishReason::kLength);
  f.scheduler->drain(1e6);
  CHECK(admitted->reason == FinishReason::kError);
  CHECK(admitted->code == Code::kCapacity);
  CHECK(ended->reason == FinishReason::kLength);
  CHECK(f.scheduler->stats().kv_bytes_used == 0);
  CHECK(f.scheduler->stats().ended == std::array<uint64_t, kFinishReasons>{0, 4, 0, 1});
}

TEST_CASE("destroying the scheduler ends every sequence") {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  {
    Fixture f;
    for (int32_t i = 0; i < 20; ++i) sinks.push_back(f.submit(greedy({i}, 60)));
  }
  for (const auto& sink : sinks) sink->wait();
}

TEST_CASE("more sequences than KV memory take turns") {
  Fixture f({}, 2);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int32_t i = 0; i < 10; ++i) sinks.push_back(f.submit(greedy({i, i + 1}, 60)));
  for (const auto& sink : sinks) CHECK(sink->wait().reason == FinishReason::kLength);
  CHECK(f.scheduler->stats().generated_tokens == 600);
}

KvRuleChoice keeps(int64_t heavy, int64_t recent) {
  KvRuleChoice choice;
  choice.kind = KvRuleKind::kH2o;
  choice.heavy = KvAmount{heavy, 0};
  choice.recent = KvAmount{recent, 0};
  return choice;
}

TEST_CASE("a smaller cache admits more sequences at once") {
  const auto sweeps = [](const KvRuleChoice& kv) {
    // All of them before the first sweep, however slowly they come.
    SchedulerOptions options;
    options.block_sequences_max = 16;
    options.gather_seconds = 60;
    Fixture f(options, 2);
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (int32_t i = 0; i < 16; ++i) {
      Request request = greedy(std::vector<int32_t>(40, 3 + i), 24);
      request.kv = kv;
      sinks.push_back(f.submit(std::move(request)));
    }
    for (const auto& sink : sinks) CHECK(sink->wait().reason == FinishReason::kLength);
    CHECK(f.scheduler->stats().kv_bytes_used == 0);
    return f.scheduler->stats().sweeps;
  };
  const uint64_t full = sweeps({});
  CHECK(full >= 8 * 24);  // Two at a time
  CHECK(sweeps(keeps(7, 7)) * 2 < full);
}

TEST_CASE("usage and statistics tell what a KV rule kept, dropped and saved") {
  Fixture f;
  Request request = greedy(std::vector<int32_t>(30, 3), 11);
  request.kv = keeps(6, 10);
  const KvUsage kv = f.submit(request)->wait().usage.kv;
  CHECK(kv.rule == KvRuleKind::kH2o);
  CHECK(kv.rows_kept == 16);
  CHECK(kv.rows_dropped == 24);
  // 40 positions in three blocks of 16 against 17 slots in two and the scores beside them.
  const auto block = static_cast<int64_t>(kv_layout(tiny_shape(), Format::kF32).sequence_bytes(16));
  const auto state = static_cast<int64_t>(KvStateLayout{2, {10, 6, true}}.bytes());
  CHECK(kv.bytes_saved == 2 * (block - state));
  CHECK(f.submit(greedy({3}, 4))->wait().usage.kv.rule == KvRuleKind::kFull);
  CHECK(f.scheduler->stats().kv.rows_dropped == 24);
  CHECK(f.scheduler->stats().kv.rows_kept == 16 + 4);
  CHECK(f.scheduler->stats().kv.bytes_saved == kv.bytes_saved);
  CHECK(f.scheduler->stats().ended == std::array<uint64_t, kFinishReasons>{0, 2, 0, 0});
}

TEST_CASE("usage tells by how much a budget was raised for protected positions") {
  Fixture f;
  Request request = greedy(std::vector<int32_t>(30, 3), 31);  // 60 positions
  request.kv = keeps(6, 10);
  request.kv.keep = KvKeep(6);
  CHECK(f.submit(request)->wait().usage.kv.rows_raised == 0);
  request.kv.keep = KvKeep::whole_prompt();
  const KvUsage kv = f.submit(request)->wait().usage.kv;
  CHECK(kv.rows_kept == 41);
  CHECK(kv.rows_dropped == 19);
  CHECK(kv.rows_raised == 25);
  CHECK(f.scheduler->stats().kv.rows_raised == 25);
}

TEST_CASE("statistics count how long sequences took") {
  Fixture f;
  double queue = 0, first = 0, whole = 0;
  for (const int32_t tokens : {0, 1, 9}) {
    const Usage usage = f.submit(greedy({3, 4}, tokens))->wait().usage;
    queue += usage.queue_seconds;
    if (tokens > 0) first += usage.queue_seconds + usage.prefill_seconds;
    whole += usage.queue_seconds + usage.prefill_seconds + usage.decode_seconds;
  }
  const SequenceTimes times = f.scheduler->stats().times;
  CHECK(times.queue.count() == 3);
  CHECK(times.first_token.count() == 2);
  CHECK(times.whole.count() == 3);
  CHECK(times.queue.sum() == Approx(queue));
  CHECK(times.first_token.sum() == Approx(first));
  CHECK(times.whole.sum() == Approx(whole));
  CHECK(times.prefill.sum() + times.decode.sum() + queue == Approx(whole));
  CHECK(times.each_token.count() == 1);
  CHECK(times.each_token.sum() == Approx(times.decode.sum() / 8));
  CHECK(times.prompt_tokens.sum() == 6);
  CHECK(times.generated_tokens.sum() == 10);
  CHECK(times.max_tokens.sum() == 10);
  const Histogram gaps = f.scheduler->stats().token_gaps;
  CHECK(gaps.count() == 8);
  CHECK(gaps.sum() == Approx(times.decode.sum()));
}

TEST_CASE("a histogram counts up to and with its bounds") {
  Histogram histogram(kRequestBounds);
  for (const double seconds : {0.0, 0.3, 0.31, 28800.0, 28801.0}) histogram.add(seconds);
  CHECK(std::is_sorted(kRequestBounds.begin(), kRequestBounds.end()));
  CHECK(std::is_sorted(kFirstTokenBounds.begin(), kFirstTokenBounds.end()));
  CHECK(std::is_sorted(kTokenBounds.begin(), kTokenBounds.end()));
  CHECK(std::is_sorted(kCountBounds.begin(), kCountBounds.end()));
  CHECK(histogram.count(0) == 2);
  CHECK(histogram.count(1) == 1);
  CHECK(histogram.count(21) == 1);
  CHECK(histogram.count(22) == 1);
  CHECK(histogram.count() == 5);
  CHECK(histogram.sum() == Approx(57601.61));
}

// With a limited budget a sequence's memory does not grow: 20,000 tokens in the room of 64.
TEST_CASE("a long generation stays inside a small cache") {
  ModelShape shape = tiny_shape(1);
  shape.positions = 21000;
  const auto kind = GENERATE(KvRuleKind::kH2o, KvRuleKind::kWindow);
  SchedulerOptions options;
  options.kv_rule = {kind, {20, 0}, {27, 0}, 0, false};
  if (kind == KvRuleKind::kWindow) options.kv_rule.keep = 4;
  // Room for 128 positions of its one layer. One thread: in so long a run ThreadSanitizer forgets
  // the stacks by which tests/support/tsan.supp knows the loops of oneTBB.
  Fixture f(options, 1, shape, 1);
  const Finish finish = f.submit(greedy(std::vector<int32_t>(500, 7), 20000))->wait();
  INFO(finish.status.message());
  CHECK(finish.reason == FinishReason::kLength);
  CHECK(finish.usage.generated_tokens == 20000);
  CHECK(finish.usage.kv.rows_kept == (kind == KvRuleKind::kH2o ? 47 : 31));
  Request full = greedy(std::vector<int32_t>(500, 7), 20000);
  full.kv.kind = KvRuleKind::kFull;
  CHECK(refusal(*f.scheduler, full).message().find("kv_rule") != std::string_view::npos);
  const Status beyond = refusal(*f.scheduler, greedy(std::vector<int32_t>(500, 7), 20501));
  CHECK(beyond.code() == Code::kInvalidArgument);
  CHECK(beyond.message().find("21000 positions") != std::string_view::npos);
}

}  // namespace
}  // namespace spillway::block_scheduler_test
