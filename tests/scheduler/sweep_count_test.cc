// What a sweep adds to the statistics, and who is counted as waiting and running meanwhile.
#include "scheduler/sweep_count.h"

#include <catch2/catch.hpp>

#include "scheduler/block_scheduler.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/gate_sink.h"
#include "tests/support/tiny_shape.h"

namespace spillway::sweep_count_test {
namespace {

LoggedSweep logged_sweep(double seconds) {
  LoggedSweep sweep;
  sweep.seconds = seconds;
  sweep.ended = 1000;
  sweep.decoding = 3;
  sweep.prompt_tokens = 20;
  sweep.weights_wait_seconds = 0.25 * seconds;
  sweep.kv_wait_seconds = 0.125 * seconds;
  sweep.activations_wait_seconds = 0.0625 * seconds;
  sweep.staging_wait_seconds = 0.03125 * seconds;
  return sweep;
}

TEST_CASE("the causes of a sweep's time add up to the time around it") {
  SchedulerStats stats;
  const LoggedSweep sweep = logged_sweep(4);
  count({&sweep, 10, 14.5, 20, 5, {}, {}}, &stats);
  CHECK(stats.sweeps == 1);
  CHECK(stats.busy_seconds == 4.5);
  CHECK(stats.seconds.weights == 1);
  CHECK(stats.seconds.kv == 0.5);
  CHECK(stats.seconds.activations == 0.25);
  CHECK(stats.seconds.staging == 0.125);
  CHECK(stats.seconds.compute == 2.125);
  CHECK(stats.seconds.other == 0.5);
  CHECK(stats.prompt_tokens == 20);
  CHECK(stats.generated_tokens == 5);
  CHECK(stats.last_sweep.decoding == 3);
  CHECK(stats.last_sweep.weights_wait == 1);
  CHECK_FALSE(stats.bound_seconds.has_value());
}

TEST_CASE("a sweep that failed is time, and nothing else") {
  SchedulerStats stats;
  const LoggedSweep sweep = logged_sweep(1);
  count({&sweep, 0, 1, 0, 0, {}, {}}, &stats);
  count({nullptr, 1, 3, 7, 0, {}, {}}, &stats);
  CHECK(stats.sweeps == 2);
  CHECK(stats.sweeps_failed == 1);
  CHECK(stats.failures_in_a_row == 1);
  CHECK(stats.busy_seconds == 3);
  CHECK(stats.seconds.other == 2);
  CHECK(stats.last_sweep.ended == 0);
  count({&sweep, 3, 4, 0, 0, {}, {}}, &stats);
  CHECK(stats.failures_in_a_row == 0);
  CHECK(stats.sweeps_failed == 1);
}

TEST_CASE("the recent pace forgets what is longer ago than some minutes of work") {
  SchedulerStats stats;
  const LoggedSweep sweep = logged_sweep(1);
  double now = 0;
  const auto run = [&](int sweeps, uint64_t tokens, double bound) {
    for (int i = 0; i < sweeps; ++i, ++now) {
      count({&sweep, now, now + 1, 0, tokens, bound, {}}, &stats);
    }
  };
  run(10, 100, 0.5);
  CHECK(stats.recent_tokens / stats.recent_seconds == Approx(100));
  CHECK(stats.recent_bound_seconds / stats.recent_seconds == Approx(0.5));
  run(600, 20, 0.75);
  CHECK(stats.recent_tokens / stats.recent_seconds == Approx(20).epsilon(0.01));
  CHECK(stats.recent_bound_seconds / stats.recent_seconds == Approx(0.75).epsilon(0.01));
  CHECK(stats.bound_seconds.value() == Approx(10 * 0.5 + 600 * 0.75));
  CHECK(stats.generated_tokens == 10 * 100 + 600 * 20);
}

// A scheduler of one place.
struct OnePlace {
  explicit OnePlace(SweepBound bound = {}) {
    SchedulerOptions options;
    options.block_sequences_max = 1;
    EngineOptions engine;
    engine.sweep_tokens_max = sweep_tokens_max(shape, options);
    engine.kv_bytes = kv_layout(shape, Format::kF32).sequence_bytes(64) * 4;
    scheduler =
        start_scheduler(Engine::open(*device, *weights, engine).value(), options, std::move(bound));
  }

  std::shared_ptr<test::CollectingSink> submit(int32_t priority, bool batch) {
    auto sink = std::make_shared<test::CollectingSink>();
    REQUIRE(scheduler->submit(request(priority, batch), sink).ok());
    return sink;
  }
  static Request request(int32_t priority, bool batch) {
    Request made;
    made.prompt = {1, 2};
    made.max_tokens = 3;
    made.ignore_eos = true;
    made.priority = priority;
    made.batch = batch;
    return made;
  }

  const ModelShape shape = test::tiny_shape();
  const std::unique_ptr<Device> device = open_cpu_device(1).value();
  const std::unique_ptr<WeightStore> weights =
      WeightStore::dummy(*device, shape, Format::kF32, 1, {}).value();
  std::unique_ptr<Scheduler> scheduler;
};

TEST_CASE("who waits and who runs is counted by class") {
  OnePlace test;
  auto held = std::make_shared<test::GateSink>();
  REQUIRE(test.scheduler->submit(OnePlace::request(1'000'000, true), held).ok());
  held->wait_held();
  std::vector<std::shared_ptr<test::CollectingSink>> sinks;
  for (const int32_t priority : {-5, 0, 0, 7}) sinks.push_back(test.submit(priority, false));
  for (const int32_t priority : {0, 1'000'000}) sinks.push_back(test.submit(priority, true));
  SchedulerStats stats = test.scheduler->stats();
  CHECK(stats.running_by_class == ClassCounts{0, 0, 0, 1});
  CHECK(stats.waiting_by_class == ClassCounts{1, 2, 1, 2});
  CHECK(sum(stats.waiting_by_class) == stats.waiting);
  held->open();
  for (const auto& sink : sinks) CHECK(sink->wait().reason == FinishReason::kLength);
  test.scheduler->drain(1e6);
  stats = test.scheduler->stats();
  CHECK(stats.running_by_class == ClassCounts{});
  CHECK(stats.waiting_by_class == ClassCounts{});
}

TEST_CASE("who is cancelled while waiting waits no more") {
  OnePlace test;
  auto held = std::make_shared<test::GateSink>();
  REQUIRE(test.scheduler->submit(OnePlace::request(0, false), held).ok());
  held->wait_held();
  auto sink = std::make_shared<test::CollectingSink>();
  const auto id = test.scheduler->submit(OnePlace::request(3, false), sink);
  REQUIRE(id.ok());
  test.scheduler->cancel(id.value());
  held->open();
  CHECK(sink->wait().reason == FinishReason::kCancelled);
  test.scheduler->drain(1e6);
  CHECK(test.scheduler->stats().waiting_by_class == ClassCounts{});
}

TEST_CASE("every good sweep adds its bound, from the start on") {
  std::vector<SweepWork> seen;  // The engine thread's, until all is drained
  OnePlace test([&seen](const SweepWork& work) {
    seen.push_back(work);
    return 0.25;
  });
  CHECK(test.scheduler->stats().bound_seconds == 0.0);
  CHECK(test.submit(0, false)->wait().reason == FinishReason::kLength);
  test.scheduler->drain(1e6);
  const SchedulerStats stats = test.scheduler->stats();
  CHECK(stats.sweeps == seen.size());
  CHECK(stats.bound_seconds.value() == Approx(0.25 * static_cast<double>(seen.size())));
  REQUIRE_FALSE(seen.empty());
  CHECK(seen.front().prompt_tokens == 2);
}

}  // namespace
}  // namespace spillway::sweep_count_test
