// Prompts that begin alike share their beginning: the tokens of a scheduler that shares are those
// of one that does not, on every tier, and what is shared is computed once.
#include "scheduler/kv_room.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <random>
#include <thread>

#include "scheduler/block_scheduler.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/engine_on_tiers.h"
#include "tests/support/fake_io.h"
#include "tests/support/gate_sink.h"
#include "tests/support/seed.h"
#include "tests/support/test_devices.h"
#include "tests/support/tiny_shape.h"

namespace spillway::kv_room_test {
namespace {

using test::CollectingSink;
using test::FakeIo;

constexpr int64_t kPositions = 256;

struct Setup {
  int64_t memory_sequences = 0, disk_sequences = 0;  // Longest ones that each tier holds
  int64_t aside_sequences = 0;
  int64_t prefill_tokens = 300;
  int64_t prefill_target = 0;
  int64_t prefix_sequences = 1000;  // What may be shared; 0: nothing
};

ModelShape shape_of_tests() {
  ModelShape shape = test::rotary_shape(3);
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
    scheduling.prefill_tokens_max = setup.prefill_tokens;
    scheduling.prefill_target = setup.prefill_target;
    Setup shared;
    shared.memory_sequences = setup.prefix_sequences;
    scheduling.prefix_cache_bytes = bytes_of(shared, shape_of_tests()).memory;
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

const KvRuleChoice kRules[12] = {
    {},
    {KvRuleKind::kH2o, KvAmount{10, 0}, KvAmount{12, 0}, {}, {}},
    {KvRuleKind::kH2o, KvAmount{30, 0}, KvAmount{4, 0}, {}, {}},
    {KvRuleKind::kWindow, {}, KvAmount{20, 0}, KvKeep(KvAmount{3, 0}), {}},
    {KvRuleKind::kRandom, KvAmount{10, 0}, KvAmount{12, 0}, {}, {}},
    {KvRuleKind::kSnap, KvAmount{10, 0}, KvAmount{12, 0}, {}, {}}};

// Prompts from a tree of beginnings, some of them longer than a sweep, of several rules and salts.
// `rules`: 0: most keep every row; 1: all do; 2: none does.
std::vector<Job> make_jobs(uint64_t seed, int rules) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<int32_t>> beginnings(1);
  for (int i = 0; i < 12; ++i) {
    std::vector<int32_t> longer = beginnings[random() % beginnings.size()];
    for (uint64_t n = 8 + random() % 40; n > 0 && longer.size() < 150; --n) {
      longer.push_back(static_cast<int32_t>(random() % 90));
    }
    beginnings.push_back(longer);
  }
  // Whatever was drawn, one is long enough that prompts share it under limited rules, too.
  while (beginnings.back().size() < 140) {
    beginnings.back().push_back(static_cast<int32_t>(random() % 90));
  }
  std::vector<Job> jobs(80);
  for (Job& job : jobs) {
    const bool long_one = random() % 8 == 0;
    job.request.prompt = long_one ? beginnings.back() : beginnings[random() % beginnings.size()];
    for (uint64_t n = 1 + random() % 25; n > 0; --n) {
      job.request.prompt.push_back(static_cast<int32_t>(random() % 90));
    }
    job.request.max_tokens = 60;
    job.request.ignore_eos = true;
    job.request.sampling.temperature = random() % 2 == 0 ? 0.0f : 0.9f;
    job.request.sampling.seed = random();
    job.request.cache_salt.text = random() % 10 == 0 ? 1 : 0;
    if (random() % 12 == 0) job.request.prompt_logprobs = 0;
    job.length = random() % 3 == 0 ? 60 : 1 + random() % 20;
    job.request.kv = kRules[rules == 0 ? random() % 12 : rules == 1 ? 0 : random() % 5 + 1];
  }
  return jobs;
}

struct Answers {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<Finish> ends;
  SchedulerStats stats;
};

Answers run(const Setup& setup, const std::vector<Job>& jobs, FakeIo& io) {
  Fixture f(setup, io);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Job& job : jobs) {
    sinks.push_back(std::make_shared<CollectingSink>(job.length));
    REQUIRE(f.scheduler->submit(job.request, sinks.back()).ok());
  }
  Answers answers;
  for (const auto& sink : sinks) {
    answers.ends.push_back(sink->wait());
    answers.tokens.push_back(sink->tokens);
  }
  f.scheduler->drain(1e6);
  answers.stats = f.scheduler->stats();
  CHECK(answers.stats.kv_bytes_used == 0);
  CHECK(answers.stats.running == 0);
  return answers;
}

TEST_CASE("prompts that share their beginnings give the tokens of those that do not") {
  const uint64_t seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  const Setup setup =
      GENERATE(Setup{20, 0, 60}, Setup{3, 0, 60}, Setup{3, 0, 0}, Setup{2, 2, 60}, Setup{1, 3, 0},
               Setup{0, 4, 60}, Setup{4, 0, 60, 50}, Setup{4, 0, 60, 90, 40},
               Setup{3, 1, 60, 300, 0, 1}, Setup{1, 0, 60, 60});
  INFO(setup.memory_sequences << " in memory, " << setup.disk_sequences << " on disk, "
                              << setup.aside_sequences << " aside, prefill " << setup.prefill_tokens
                              << ", target " << setup.prefill_target);
  const int rules = GENERATE(0, 1, 2);
  CAPTURE(rules);
  // Under a sanitizer, which takes minutes for all of them, one of three.
  if (!test::thorough() && (setup.memory_sequences + rules) % 3 != 0) return;
  const std::vector<Job> jobs = make_jobs(seed, rules);
  FakeIo io({.seed = seed}), other({.seed = seed});
  const Answers expected = run({100, 0, 0, 300, 0, 0}, jobs, other);
  const Answers found = run(setup, jobs, io);
  CHECK(found.tokens == expected.tokens);
  uint64_t prompts = 0, cached = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Finish& end = found.ends[i];
    CHECK(end.status.ok());
    CHECK(end.usage.prompt_tokens == static_cast<int64_t>(jobs[i].request.prompt.size()));
    CHECK(end.usage.cached_tokens % kKvBlockRows == 0);
    CHECK(end.usage.cached_tokens < end.usage.prompt_tokens);
    if (jobs[i].request.prompt_logprobs >= 0) CHECK(end.usage.cached_tokens == 0);
    prompts += static_cast<uint64_t>(end.usage.prompt_tokens);
    cached += static_cast<uint64_t>(end.usage.cached_tokens);
    CHECK(expected.ends[i].usage.cached_tokens == 0);
  }
  CHECK(expected.stats.prompt_tokens == prompts);
  CHECK(found.stats.prompt_tokens == prompts - cached);
  CHECK(found.stats.prefix_hits == cached);
  if (setup.memory_sequences >= 20) CHECK(cached > (rules == 2 ? 0 : prompts / 5));
  if (setup.memory_sequences == 0) CHECK(cached == 0);
}

Request request_of(const std::vector<int32_t>& beginning, int32_t last) {
  Request request;
  request.prompt = beginning;
  request.prompt.push_back(last);
  request.max_tokens = 4;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  return request;
}

TEST_CASE(
    "a disk that fails ends the sequences that it fails, and what they computed misleads none") {
  const uint64_t seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  const bool reads = GENERATE(false, true);
  const int rules = GENERATE(0, 1, 2);
  CAPTURE(reads, rules);
  const std::vector<Job> jobs = make_jobs(seed, rules);
  FakeIo io({.seed = seed}), other({.seed = seed});
  const Answers expected = run({100, 0, 0, 300, 0, 0}, jobs, other);
  const Setup setup{4, 3, 60};
  const uint64_t bytes = kv_layout(test::rotary_shape(3), Format::kF32).sequence_bytes(kPositions);
  io.add_fault({.effect = test::IoFault::Effect::kError,
                .kind = reads ? IoRequest::Kind::kRead : IoRequest::Kind::kWrite,
                .begin = bytes,
                .end = bytes + 40000,
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
  CHECK(failed < jobs.size());
}

// Prompt tokens that requests compute which all come while another one holds the engine.
int64_t computed_together(Fixture& f, const std::vector<Request>& requests) {
  const auto gate = std::make_shared<test::GateSink>();
  REQUIRE(f.scheduler->submit(request_of({1, 2, 3}, 4), gate).ok());
  gate->wait_held();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Request& request : requests) {
    sinks.push_back(std::make_shared<CollectingSink>());
    REQUIRE(f.scheduler->submit(request, sinks.back()).ok());
  }
  gate->open();
  int64_t computed = 0;
  for (const auto& sink : sinks) {
    const Finish end = sink->wait();
    CHECK(end.status.ok());
    computed += end.usage.prompt_tokens - end.usage.cached_tokens;
  }
  return computed;
}

TEST_CASE("requests that arrive together compute their common beginning once") {
  FakeIo io({.seed = 1});
  Fixture f({100}, io);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 30; ++i) {
    requests.push_back(request_of(std::vector<int32_t>(160, 5), 10 + i));
  }
  CHECK(computed_together(f, requests) == 160 + 30);
  CHECK(f.scheduler->stats().prefix_hits == 29 * 160);
}

TEST_CASE("under a limited rule the second prompt computes the beginning that the others share") {
  FakeIo io({.seed = 1});
  Fixture f({100}, io);
  const KvRuleChoice rule = GENERATE(from_range(kRules + 1, kRules + 6));
  CAPTURE(static_cast<int>(*rule.kind));
  std::vector<Request> requests;
  for (int32_t i = 0; i < 30; ++i) {
    Request& request = requests.emplace_back(request_of(std::vector<int32_t>(160, 5), 10 + i));
    request.prompt.insert(request.prompt.end(), 40, 11 + i);
    request.kv = rule;
  }
  CHECK(computed_together(f, requests) == 2 * 160 + 30 * 41);
}

TEST_CASE("a conversation goes on behind its last prompt, and salts share nothing") {
  FakeIo io({.seed = 1});
  Fixture f({10}, io);
  const auto ask = [&](std::vector<int32_t> prompt, uint64_t salt) {
    Request request = request_of({prompt.begin(), prompt.end() - 1}, prompt.back());
    request.cache_salt.key = salt;
    const auto sink = std::make_shared<CollectingSink>();
    REQUIRE(f.scheduler->submit(std::move(request), sink).ok());
    return sink->wait().usage.cached_tokens;
  };
  std::vector<int32_t> prompt(50, 3);
  CHECK(ask(prompt, 0) == 0);
  prompt.resize(90, 7);
  CHECK(ask(prompt, 0) == 48);
  CHECK(ask(prompt, 0) == 80);
  CHECK(ask(prompt, 9) == 0);
  CHECK(ask(prompt, 9) == 80);
}

TEST_CASE("a sequence that is cancelled while it computes a beginning leaves nothing behind") {
  FakeIo io({.seed = 1});
  Fixture f({10, 0, 0, 20}, io);  // In chunks
  const std::vector<int32_t> beginning(200, 5);
  const auto gate = std::make_shared<test::GateSink>();
  REQUIRE(f.scheduler->submit(request_of({1}, 4), gate).ok());
  gate->wait_held();
  const auto first = std::make_shared<CollectingSink>(),
             second = std::make_shared<CollectingSink>();
  const RequestId id = f.scheduler->submit(request_of(beginning, 10), first).value();
  REQUIRE(f.scheduler->submit(request_of(beginning, 11), second).ok());
  gate->open();
  f.scheduler->cancel(id);
  first->wait();
  const Finish end = second->wait();
  CHECK(end.status.ok());
  FakeIo other({.seed = 1});
  Fixture plain({10, 0, 0, 300, 0, 0}, other);
  const auto expected = std::make_shared<CollectingSink>();
  REQUIRE(plain.scheduler->submit(request_of(beginning, 11), expected).ok());
  expected->wait();
  CHECK(second->tokens == expected->tokens);
}

}  // namespace
}  // namespace spillway::kv_room_test
