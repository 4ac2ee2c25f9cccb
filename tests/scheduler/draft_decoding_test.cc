// A scheduler with drafts over a real engine: the tokens, log-probabilities and endings of one
// without, wherever the cache lies and whoever else runs.
#include <catch2/catch.hpp>
#include <random>

#include "scheduler/block_scheduler.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/engine_on_tiers.h"
#include "tests/support/fake_io.h"
#include "tests/support/seed.h"
#include "tests/support/tiny_shape.h"

namespace spillway::draft_decoding_test {
namespace {

using test::CollectingSink;
using test::FakeIo;

constexpr int64_t kPositions = 256;

ModelShape with_positions(ModelShape shape) {
  shape.positions = kPositions;
  return shape;
}

struct Setup {
  ModelShape shape = with_positions(test::rotary_shape());
  int64_t draft_tokens = 0;
  int64_t block = 4;
  int64_t memory_sequences = 8, disk_sequences = 0, aside_sequences = 0;
  uint64_t prefix_bytes = 0;
};

struct Fixture : test::EngineOnTiers {
  Fixture(const Setup& setup, FakeIo& io)
      : EngineOnTiers(setup.shape, options_of(setup), bytes_of(setup), io) {
    start();
  }
  static SchedulerOptions options_of(const Setup& setup) {
    SchedulerOptions options;
    options.block_sequences_max = setup.block;
    options.prefill_tokens_max = 64;
    options.draft_tokens = setup.draft_tokens;
    options.prefix_cache_bytes = setup.prefix_bytes;
    // A few ids, so that drafts come true at a temperature, too.
    options.sampling_vocabulary = 7;
    return options;
  }
  static KvBytes bytes_of(const Setup& setup) {
    const uint64_t layer = kv_layout(setup.shape, Format::kF32).sequence_bytes(kPositions);
    const auto bytes = [&](int64_t sequences) {
      return static_cast<uint64_t>(sequences * setup.shape.layers) * layer;
    };
    return {bytes(setup.memory_sequences), bytes(setup.disk_sequences),
            bytes(setup.aside_sequences), 4 * layer};
  }
};

struct Ran {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<Finish> ends;
  SchedulerStats stats;
};

struct Job {
  Request request;
  size_t stop_after = 0;  // The client has enough.
};

Ran run(const Setup& setup, const std::vector<Job>& jobs) {
  FakeIo io({.seed = 1});
  Fixture fixture(setup, io);
  Ran ran;
  for (const Job& job : jobs) {
    ran.sinks.push_back(std::make_shared<CollectingSink>(job.stop_after));
    const auto id = fixture.scheduler->submit(job.request, ran.sinks.back());
    INFO(id.status().message());
    REQUIRE(id.ok());
  }
  for (const auto& sink : ran.sinks) ran.ends.push_back(sink->wait());
  fixture.scheduler->drain(1e6);
  ran.stats = fixture.scheduler->stats();
  CHECK(ran.stats.kv_bytes_used == 0);
  return ran;
}

// Prompts that repeat themselves, more or less; greedy and sampled; some with penalties, biases,
// log-probabilities, stop tokens and limited rules.
std::vector<Job> make_jobs(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::vector<Job> jobs(count);
  for (size_t i = 0; i < count; ++i) {
    Request& request = jobs[i].request;
    const uint64_t vocabulary = 1 + random() % 7;
    for (uint64_t n = 1 + random() % 90; n > 0; --n) {
      request.prompt.push_back(static_cast<int32_t>(random() % vocabulary));
    }
    request.max_tokens = static_cast<int32_t>(1 + random() % 150);
    request.ignore_eos = random() % 4 > 0;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = random();
    if (random() % 4 == 0) request.sampling.top_p = 0.5f;
    if (random() % 5 == 0) request.sampling.repetition_penalty = 1.3f;
    if (random() % 5 == 0) request.sampling.frequency_penalty = 0.4f;
    if (random() % 5 == 0) request.sampling.logit_bias = {{3, 2.0f}, {5, -1.0f}};
    if (random() % 3 == 0) request.logprobs = 2;
    if (random() % 6 == 0) request.prompt_logprobs = 1;
    if (random() % 5 == 0) request.stop_tokens = {static_cast<int32_t>(random() % 7)};
    if (random() % 4 == 0) {
      request.min_tokens = static_cast<int32_t>(random()) % (request.max_tokens + 1);
      request.min_tokens = std::max(0, request.min_tokens);
    }
    if (random() % 6 == 0) request.kv = {KvRuleKind::kH2o, KvAmount{4, 0}, KvAmount{8, 0}, {}, {}};
    if (random() % 5 == 0) jobs[i].stop_after = 1 + random() % 60;
  }
  return jobs;
}

void require_same(const Ran& expected, const Ran& found) {
  REQUIRE(expected.sinks.size() == found.sinks.size());
  for (size_t i = 0; i < expected.sinks.size(); ++i) {
    INFO("request " << i);
    const CollectingSink &a = *expected.sinks[i], &b = *found.sinks[i];
    REQUIRE(a.tokens == b.tokens);
    REQUIRE(a.logprobs.size() == b.logprobs.size());
    for (size_t t = 0; t < a.logprobs.size(); ++t) {
      // Equal bits: the logits are those of a step alone.
      REQUIRE(a.logprobs[t].logprob == b.logprobs[t].logprob);
      REQUIRE(a.logprobs[t].best == b.logprobs[t].best);
    }
    REQUIRE(a.prompt_logprobs.size() == b.prompt_logprobs.size());
    const Finish &x = expected.ends[i], &y = found.ends[i];
    REQUIRE(x.reason == y.reason);
    REQUIRE(x.stop_token == y.stop_token);
    REQUIRE(x.usage.generated_tokens == y.usage.generated_tokens);
    REQUIRE(x.usage.kv.rows_kept == y.usage.kv.rows_kept);
  }
  CHECK(expected.stats.generated_tokens == found.stats.generated_tokens);
}

void check(const Setup& setup, uint64_t seed, size_t count) {
  INFO("SPILLWAY_TEST_SEED=" << seed);
  const std::vector<Job> jobs = make_jobs(seed, count);
  const Ran expected = run(setup, jobs);
  CHECK(expected.stats.drafts.drafts == 0);
  for (const int64_t tokens : {1, 4, 16}) {
    INFO("drafts of " << tokens);
    Setup drafting = setup;
    drafting.draft_tokens = tokens;
    const Ran found = run(drafting, jobs);
    require_same(expected, found);
    const DraftCounts& drafts = found.stats.drafts;
    CHECK(drafts.accepted > 0);
    CHECK(drafts.accepted < drafts.drafted);  // Wrong ones were there, too.
    CHECK(drafts.drafted >= drafts.drafts);
    CHECK(drafts.drafted <= drafts.drafts * static_cast<uint64_t>(tokens));
  }
}

TEST_CASE("with drafts a sequence has the tokens that it has without") {
  const uint64_t seed = test::random_seed();
  check({.block = 1}, seed, 40);
  check({}, seed, 60);
  check({.shape = with_positions(test::tiny_shape())}, seed, 40);
}

TEST_CASE("with drafts a cache on disk gives the tokens that it gives without") {
  const uint64_t seed = test::random_seed();
  check({.block = 1, .memory_sequences = 0, .disk_sequences = 3}, seed, 25);
  check({.block = 3, .memory_sequences = 1, .disk_sequences = 3}, seed, 25);
}

TEST_CASE("with drafts sequences are set aside and come back with their tokens") {
  const uint64_t seed = test::random_seed();
  check({.block = 6, .memory_sequences = 2, .aside_sequences = 8}, seed, 30);
}

TEST_CASE("with drafts behind shared beginnings the tokens are the same") {
  const uint64_t seed = test::random_seed();
  check({.prefix_bytes = uint64_t{1} << 30}, seed, 40);
}

TEST_CASE("what repeats takes fewer sweeps with drafts") {
  Job job;
  job.request.prompt = {1, 2, 3};
  job.request.max_tokens = 120;
  job.request.ignore_eos = true;
  job.request.sampling.temperature = 0;
  job.request.sampling.logit_bias = {{4, 1000.0f}};  // 4 4 4 ...
  const Ran plain = run({}, {job}), drafted = run({.draft_tokens = 4}, {job});
  require_same(plain, drafted);
  CHECK(plain.stats.sweeps == 120);
  // Three tokens one by one, 23 times five, and what is left
  CHECK(drafted.stats.sweeps <= 3 + 23 + 3);
  CHECK(drafted.stats.drafts.accepted == drafted.stats.drafts.drafted);
}

TEST_CASE("rules that drop rows and sliding windows have no drafts") {
  Job job;
  job.request.prompt = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  job.request.max_tokens = 60;
  job.request.ignore_eos = true;
  Setup window{.draft_tokens = 4};
  window.shape.sliding_window = 16;
  CHECK(run(window, {job}).stats.drafts.drafts == 0);
  for (const KvRuleKind kind : {KvRuleKind::kH2o, KvRuleKind::kWindow, KvRuleKind::kRandom}) {
    job.request.kv = {};
    job.request.kv.kind = kind;
    job.request.kv.recent = KvAmount{8, 0};
    CHECK(run({.draft_tokens = 4}, {job}).stats.drafts.drafts == 0);
  }
  // A budget that never fills keeps every row.
  job.request.kv.recent = KvAmount{200, 0};
  CHECK(run({.draft_tokens = 4}, {job}).stats.drafts.drafts > 0);
}

TEST_CASE("a block of many sequences has no drafts") {
  std::vector<Job> jobs(9);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].request.prompt = std::vector<int32_t>(10 + i, 1);
    jobs[i].request.max_tokens = 20;
    jobs[i].request.ignore_eos = true;
  }
  const Setup setup{.draft_tokens = 4, .block = 9, .memory_sequences = 9};
  const Ran ran = run(setup, jobs);
  // All nine run together, but in the first and the last sweeps.
  CHECK(ran.stats.drafts.drafted <= 9 * 8);
}

}  // namespace
}  // namespace spillway::draft_decoding_test
