// What the scheduler does about an exception in a sweep, and in which order and with whom requests
// get into one.
#include <catch2/catch.hpp>
#include <new>
#include <thread>

#include "scheduler/block_scheduler.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/tiny_shape.h"

namespace spillway::sweep_errors_test {
namespace {

using test::CollectingSink;
using test::tiny_shape;

struct Fixture {
  explicit Fixture(const SchedulerOptions& options, int64_t micro_batch_tokens = 0)
      : device(open_cpu_device(2).value()),
        weights(WeightStore::dummy(*device, tiny_shape(), Format::kF32, 1, {}).value()) {
    EngineOptions engine;
    engine.sweep_tokens_max = sweep_tokens_max(tiny_shape(), options);
    if (micro_batch_tokens > 0) engine.micro_batch_tokens = micro_batch_tokens;
    engine.kv_bytes = kv_layout(tiny_shape(), Format::kF32).sequence_bytes(64) * 16;
    scheduler = start_scheduler(Engine::open(*device, *weights, engine).value(), options);
  }
  void submit(Request request, std::shared_ptr<TokenSink> sink) {
    const auto id = scheduler->submit(std::move(request), std::move(sink));
    INFO(id.status().message());
    REQUIRE(id.ok());
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Scheduler> scheduler;
};

Request greedy(std::vector<int32_t> prompt, int32_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  return request;
}

// Runs out of memory at its third token.
class FullSink final : public TokenSink {
 public:
  void on_prompt_logprobs(std::span<const TokenLogprobs>) override {}
  AfterToken on_token(int32_t, const TokenLogprobs*) override {
    if (++tokens_ == 3) throw std::bad_alloc();
    return AfterToken::kGoOn;
  }
  void on_finish(const Finish& finish) override { inner.on_finish(finish); }
  CollectingSink inner;

 private:
  int tokens_ = 0;
};

TEST_CASE("an exception in a sweep is the error of its sequences, and the next request runs") {
  Fixture f({});
  const auto full = std::make_shared<FullSink>();
  f.submit(greedy({1, 2, 3}, 20), full);
  const Finish finish = full->inner.wait();
  CHECK(finish.reason == FinishReason::kError);
  CHECK(finish.status.code() == Code::kCapacity);
  CHECK(std::string(finish.status.message()).find("the sweep failed") != std::string::npos);
  CHECK(f.scheduler->stats().healthy);
  // The prompt and the first token were cached; the sweep that failed counts for nothing.
  CHECK(finish.usage.kv.rows_kept == 4);
  const auto next = std::make_shared<CollectingSink>();
  f.submit(greedy({1, 2, 3}, 20), next);
  CHECK(next->wait().reason == FinishReason::kLength);
}

TEST_CASE("who has ended in a sweep keeps the ending, though the sweep fails") {
  SchedulerOptions options;
  options.block_sequences_max = 2;
  options.gather_seconds = 600;
  Fixture f(options);
  const auto ends = std::make_shared<CollectingSink>(3);  // At its third token, before the other's
  const auto full = std::make_shared<FullSink>();
  f.submit(greedy({1, 2, 3}, 20), ends);
  f.submit(greedy({4, 5, 6}, 20), full);
  CHECK(ends->wait().reason == FinishReason::kStop);
  CHECK(full->inner.wait().reason == FinishReason::kError);
}

TEST_CASE("a prompt joins a micro-batch only where both fit its tokens") {
  SchedulerOptions options;
  options.block_sequences_max = 2;
  options.gather_seconds = 600;
  Fixture f(options, 16);  // A micro-batch has memory for these, or for one prompt.
  const auto first = std::make_shared<CollectingSink>(),
             second = std::make_shared<CollectingSink>();
  f.submit(greedy(std::vector<int32_t>(10, 3), 2), first);
  f.submit(greedy(std::vector<int32_t>(60, 4), 2), second);
  CHECK(first->wait().reason == FinishReason::kLength);
  CHECK(second->wait().reason == FinishReason::kLength);
}

// Writes its name down when it is admitted.
class NamedSink final : public TokenSink {
 public:
  NamedSink(char name, std::string* admitted) : name_(name), admitted_(admitted) {}
  void on_admitted() override { *admitted_ += name_; }
  void on_prompt_logprobs(std::span<const TokenLogprobs>) override {}
  AfterToken on_token(int32_t, const TokenLogprobs*) override { return AfterToken::kGoOn; }
  void on_finish(const Finish& finish) override { inner.on_finish(finish); }
  CollectingSink inner;

 private:
  const char name_;
  std::string* admitted_;
};

TEST_CASE("requests of equal priority begin in the order in which they came") {
  SchedulerOptions options;
  options.block_sequences_max = 1;
  options.gather_seconds = 0;
  Fixture f(options);
  std::string admitted;  // Of the engine thread
  std::vector<std::shared_ptr<NamedSink>> sinks;
  for (const char name : {'a', 'b', 'c', 'd', 'e'}) {
    sinks.push_back(std::make_shared<NamedSink>(name, &admitted));
    f.submit(greedy({1, 2}, 20), sinks.back());
  }
  for (const auto& sink : sinks) CHECK(sink->inner.wait().reason == FinishReason::kLength);
  CHECK(admitted == "abcde");
}

TEST_CASE("requests that arrive together share their sweeps") {
  SchedulerOptions options;
  options.block_sequences_max = 2;
  options.gather_seconds = 600;  // A full block does not wait for the end of it.
  Fixture f(options);
  const auto first = std::make_shared<CollectingSink>(),
             second = std::make_shared<CollectingSink>();
  f.submit(greedy({1, 2, 3}, 6), first);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // Time to begin with one alone
  f.submit(greedy({4, 5}, 6), second);
  CHECK(first->wait().reason == FinishReason::kLength);
  CHECK(second->wait().reason == FinishReason::kLength);
  CHECK(f.scheduler->stats().sweeps == 6);
}

TEST_CASE("an end token is barred from the last of min_tokens, too") {
  Fixture f({});
  const auto free = std::make_shared<CollectingSink>();
  f.submit(greedy({9, 8}, 12), free);
  free->wait();
  Request stopped = greedy({9, 8}, 12);
  stopped.stop_tokens = {free->tokens[4]};
  size_t first = 0;
  while (free->tokens[first] != free->tokens[4]) ++first;
  stopped.min_tokens = static_cast<int32_t>(first) + 1;
  const auto patient = std::make_shared<CollectingSink>();
  f.submit(stopped, patient);
  patient->wait();
  REQUIRE(patient->tokens.size() > first);
  CHECK(patient->tokens[first] != free->tokens[4]);
  // With as many tokens before it, it ends the sequence; also where logprobs are asked for, which
  // takes another way to a token.
  stopped.min_tokens = static_cast<int32_t>(first);
  for (const int32_t logprobs : {-1, 0}) {
    stopped.logprobs = logprobs;
    const auto ended = std::make_shared<CollectingSink>();
    f.submit(stopped, ended);
    const Finish finish = ended->wait();
    CHECK(finish.reason == FinishReason::kStop);
    CHECK(finish.stop_token == free->tokens[4]);
    CHECK(ended->logprobs.size() == (logprobs < 0 ? 0 : ended->tokens.size()));
  }
}

// The state that h2o keeps for its rows can take more than the few rows that it drops.
TEST_CASE("a KV budget that is nearly full saves nothing, and never less") {
  Fixture f({});
  Request request = greedy({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 54);  // 63 positions
  request.kv.kind = KvRuleKind::kH2o;
  request.kv.heavy = KvAmount{31, 0};
  request.kv.recent = KvAmount{31, 0};
  const auto sink = std::make_shared<CollectingSink>();
  f.submit(request, sink);
  const Finish finish = sink->wait();
  CHECK(finish.usage.kv.rows_dropped == 1);
  CHECK(finish.usage.kv.bytes_saved == 0);
}

}  // namespace
}  // namespace spillway::sweep_errors_test
