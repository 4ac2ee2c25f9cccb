// A cache that is given out as sequences grow: more of them run at once than could if all became as
// long as they may, and where they do, the youngest are set aside on disk and come back, with the
// tokens of a cache that holds all.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <random>
#include <thread>

#include "scheduler/block_scheduler.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/engine_on_tiers.h"
#include "tests/support/fake_io.h"
#include "tests/support/seed.h"
#include "tests/support/test_devices.h"
#include "tests/support/tiny_shape.h"

namespace spillway::set_aside_test {
namespace {

using test::CollectingSink;
using test::FakeIo;
using test::IoFault;

constexpr int64_t kPositions = 256;

struct Setup {
  int64_t memory_sequences = 0, disk_sequences = 0;  // Longest ones that each tier holds
  int64_t aside_sequences = 0;
  int64_t prefill_target = 0;
};

ModelShape shape_of_tests() {
  ModelShape shape = test::tiny_shape();
  shape.positions = kPositions;
  return shape;
}

struct Fixture : test::EngineOnTiers {
  Fixture(const Setup& setup, FakeIo& io)
      : EngineOnTiers(shape_of_tests(), options_of(setup), bytes_of(setup, shape_of_tests()), io) {
    start();
  }
  static SchedulerOptions options_of(const Setup& setup) {
    SchedulerOptions scheduling;
    scheduling.block_sequences_max = 40;
    scheduling.prefill_tokens_max = 200;
    scheduling.prefill_target = setup.prefill_target;
    return scheduling;
  }
  static test::EngineOnTiers::KvBytes bytes_of(const Setup& setup, const ModelShape& shape) {
    const uint64_t layer = kv_layout(shape, Format::kF32).sequence_bytes(kPositions);
    const uint64_t one = static_cast<uint64_t>(shape.layers) * layer;
    const auto bytes = [&](int64_t sequences) { return static_cast<uint64_t>(sequences) * one; };
    return {bytes(setup.memory_sequences), bytes(setup.disk_sequences),
            bytes(setup.aside_sequences), 4 * layer};
  }
};

struct Job {
  Request request;
  size_t length = 0;  // Tokens until its client has enough
};

// `longs`: the part of them that become as long as they may. `mixed`: they are of several clients
// and priorities.
std::vector<Job> make_jobs(uint64_t seed, double longs, bool mixed = false) {
  std::mt19937_64 random(seed);
  std::vector<Job> jobs(50);
  for (Job& job : jobs) {
    for (uint64_t n = 1 + random() % 40; n > 0; --n) {
      job.request.prompt.push_back(static_cast<int32_t>(random() % 90));
    }
    job.request.max_tokens = 180;
    job.request.ignore_eos = true;
    job.request.sampling.temperature = random() % 2 == 0 ? 0.0f : 0.9f;
    job.request.sampling.seed = random();
    const bool whole = static_cast<double>(random() % 1000) < 1000 * longs;
    job.length = whole ? 180 : 1 + random() % 30;
    if (mixed) {
      job.request.client = 1 + random() % 4;
      job.request.priority = static_cast<int32_t>(random() % 2);
    }
    if (random() % 5 == 0) {
      job.request.kv = {KvRuleKind::kH2o, KvAmount{10, 0}, KvAmount{12, 0}, {}, {}};
    }
  }
  return jobs;
}

struct Answers {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<Finish> ends;
  SchedulerStats stats;
  int64_t most_running = 0;
};

// Asks with every token how many sequences have begun and not ended. It runs on the engine thread:
// another one may be late and see none.
class CountingSink final : public CollectingSink {
 public:
  CountingSink(size_t stop_after, const Scheduler& scheduler, int64_t* most_running)
      : CollectingSink(stop_after), scheduler_(scheduler), most_running_(*most_running) {}

  AfterToken on_token(int32_t token, const TokenLogprobs* logprob) override {
    most_running_ = std::max(most_running_, scheduler_.stats().running);
    return CollectingSink::on_token(token, logprob);
  }

 private:
  const Scheduler& scheduler_;
  int64_t& most_running_;
};

Answers run(const Setup& setup, const std::vector<Job>& jobs, FakeIo& io) {
  Answers answers;
  Fixture f(setup, io);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Job& job : jobs) {
    sinks.push_back(
        std::make_shared<CountingSink>(job.length, *f.scheduler, &answers.most_running));
    REQUIRE(f.scheduler->submit(job.request, sinks.back()).ok());
  }
  for (const auto& sink : sinks) {
    answers.ends.push_back(sink->wait());
    answers.tokens.push_back(sink->tokens);
  }
  answers.stats = f.scheduler->stats();
  CHECK(answers.stats.kv_bytes_used == 0);
  CHECK(answers.stats.running == 0);
  return answers;
}

TEST_CASE("sequences that grow beyond the cache are set aside and lose nothing") {
  const uint64_t seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  const double longs = GENERATE(0.0, 0.5, 1.0);
  const bool mixed = GENERATE(false, true);
  const Setup setup = GENERATE(Setup{3, 0, 60}, Setup{1, 2, 60}, Setup{0, 3, 60}, Setup{3, 0, 5},
                               Setup{2, 1, 60, 50});
  if (!test::thorough() && mixed != (longs == 0.5)) return;  // Under a sanitizer, half of them
  INFO(longs << " long, of " << (mixed ? "several clients, " : "one client, ")
             << setup.memory_sequences << " in memory, " << setup.disk_sequences
             << " on disk, target " << setup.prefill_target);
  const std::vector<Job> jobs = make_jobs(seed, longs, mixed);
  FakeIo io({.seed = seed}), other({.seed = seed});
  const Answers expected = run({60, 0, 0}, jobs, other);
  const Answers found = run(setup, jobs, io);
  CHECK(found.tokens == expected.tokens);
  for (const Finish& end : found.ends) CHECK(end.status.ok());
  CHECK(expected.stats.set_aside == 0);
  if (setup.aside_sequences < 60) return;
  CHECK(found.most_running > 3);
  if (longs > 0.9) CHECK(found.stats.set_aside > 0);
}

TEST_CASE("a disk that fails under a sequence set aside ends that one alone") {
  const std::vector<Job> jobs = make_jobs(3, 1);
  const bool reads = GENERATE(false, true);
  FakeIo quiet({.seed = 3}), io({.seed = 3});
  const Setup setup{3, 0, 60};
  const Answers expected = run({60, 0, 0}, jobs, quiet);
  io.add_fault({.effect = IoFault::Effect::kError,
                .kind = reads ? IoRequest::Kind::kRead : IoRequest::Kind::kWrite,
                .begin = 0,
                .end = 1 << 20,
                .error = EIO});
  const Answers found = run(setup, jobs, io);
  size_t failed = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (found.ends[i].status.ok()) {
      CHECK(found.tokens[i] == expected.tokens[i]);
    } else {
      ++failed;
      CHECK(found.ends[i].reason == FinishReason::kError);
    }
  }
  CHECK(failed >= 1);
  CHECK(failed < jobs.size() / 2);
}

TEST_CASE("sequences set aside can be cancelled, and a drain waits for them") {
  FakeIo io({.seed = 5});
  Fixture f({3, 0, 60}, io);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<RequestId> ids;
  for (const Job& job : make_jobs(5, 1)) {
    sinks.push_back(std::make_shared<CollectingSink>(job.length));
    ids.push_back(f.scheduler->submit(job.request, sinks.back()).value());
  }
  while (f.scheduler->stats().set_aside < 3) std::this_thread::yield();
  for (size_t i = 0; i < ids.size(); i += 2) f.scheduler->cancel(ids[i]);
  f.scheduler->drain(1e6);
  for (size_t i = 0; i < sinks.size(); ++i) {
    const Finish end = sinks[i]->wait();
    if (i % 2 == 1) CHECK(end.status.ok());
  }
  CHECK(f.scheduler->stats().kv_bytes_used == 0);
}

}  // namespace
}  // namespace spillway::set_aside_test
