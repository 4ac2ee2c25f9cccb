// The sweeps that the cost model plans against those that the scheduler really runs: the same
// requests, sweep by sweep.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "policy/sweep_schedule.h"
#include "scheduler/block_scheduler.h"
#include "scheduler/sequence.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/gate_sink.h"
#include "tests/support/tiny_shape.h"

namespace spillway::planned_sweeps_test {
namespace {

using test::CollectingSink;
using test::GateSink;

// What both sides say of a sweep.
struct Sweep {
  int64_t tokens = 0, logit_rows = 0, prompts = 0, unfinished = 0;
  double prompt_rows = 0, prompt_pairs = 0, cached_rows = 0;
  friend bool operator==(const Sweep&, const Sweep&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Sweep& s) {
    return out << "{tokens " << s.tokens << ", logits " << s.logit_rows << ", prompts " << s.prompts
               << " and " << s.unfinished << " unfinished"
               << ", kept " << s.prompt_rows << ", pairs " << s.prompt_pairs << ", rows "
               << s.cached_rows << "}";
  }
};

std::vector<Sweep> unfolded(const std::vector<PlannedSweeps>& planned) {
  std::vector<Sweep> sweeps;
  for (const PlannedSweeps& p : planned) {
    const SweepWork& work = p.work;
    for (int64_t i = 0; i < p.count; ++i) {
      sweeps.push_back({work.tokens(), work.decoding + work.prompts, work.prompts,
                        work.prompts_unfinished, work.prompt_rows, work.prompt_pairs,
                        work.cached_rows + p.cached_rows_step * static_cast<double>(i)});
    }
  }
  return sweeps;
}

int64_t total_tokens(const std::vector<Sweep>& sweeps) {
  int64_t sum = 0;
  for (const Sweep& sweep : sweeps) sum += sweep.tokens;
  return sum;
}

struct Case {
  std::vector<RequestGroup> groups;
  SchedulerOptions options;
  uint64_t kv_bytes = 0;
};

// A cache that is full has room in pieces where its sequences are of different sizes, and a request
// that would fit the sum may have to wait. The plan does not know; it is exact otherwise.
enum class Cache { kAmple, kTightOneSize, kTightMixed };

Case random_case(uint64_t seed, Cache cache, const ModelShape& shape) {
  std::mt19937_64 random(seed);
  const auto upto = [&](int64_t most) {
    return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  Case made;
  made.options.block_sequences_max = upto(8);
  made.options.prefill_tokens_max = upto(60);
  made.options.corrects_target = false;  // A thread that is held up looks like a wait for data.
  if (seed % 2 == 0) made.options.prefill_target = upto(made.options.prefill_tokens_max);
  const int64_t longest = cache == Cache::kAmple ? 2 * made.options.block_sequences_max : upto(5);
  made.kv_bytes = kv_layout(shape, Format::kF32).sequence_bytes(64) *
                  static_cast<uint64_t>(shape.layers * longest);
  for (int64_t g = cache == Cache::kTightOneSize ? 1 : upto(4); g > 0; --g) {
    RequestGroup group = {.prompt_tokens = upto(40), .new_tokens = upto(20), .count = upto(6)};
    if (random() % 2 == 0) {
      group.kv.kind = random() % 2 == 0 ? KvRuleKind::kWindow : KvRuleKind::kH2o;
      group.kv.recent = KvAmount{upto(12), 0};
      if (group.kv.kind == KvRuleKind::kH2o) group.kv.heavy = KvAmount{upto(12), 0};
    }
    if (cache == Cache::kTightOneSize) group.count = 20;
    made.groups.push_back(group);
  }
  return made;
}

Request request_of(const RequestGroup& group) {
  Request request;
  request.prompt.assign(static_cast<size_t>(group.prompt_tokens), 7);
  request.max_tokens = static_cast<int32_t>(group.new_tokens);
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  request.kv = group.kv;
  return request;
}

// The sweeps of requests that all come while a first one, of one token, holds the engine; without
// that one's.
std::vector<Sweep> ran_sweeps(std::unique_ptr<Engine> engine, const SchedulerOptions& options,
                              SweepLog& log, Request first, const std::vector<Request>& requests) {
  const auto scheduler = start_scheduler(std::move(engine), options);
  const auto held = std::make_shared<GateSink>();
  REQUIRE(scheduler->submit(std::move(first), held).ok());
  held->wait_held();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Request& request : requests) {
    sinks.push_back(std::make_shared<CollectingSink>());
    REQUIRE(scheduler->submit(request, sinks.back()).ok());
  }
  held->open();
  scheduler->drain(1e6);
  for (const auto& sink : sinks) CHECK(sink->wait().reason == FinishReason::kLength);
  std::vector<Sweep> ran;
  for (const SweepWork& work : log.take()) {
    ran.push_back({work.tokens(), work.logit_rows, work.prompts, work.prompts_unfinished,
                   work.prompt_rows, work.prompt_pairs, work.cached_rows});
  }
  REQUIRE(!ran.empty());
  ran.erase(ran.begin());
  return ran;
}

TEST_CASE("planned sweeps are those that the scheduler runs") {
  ModelShape shape = test::tiny_shape();
  const bool window = GENERATE(false, true);
  if (window) set_window(9, {0, 1}, shape);
  const auto device = open_cpu_device(1).value();
  const auto weights = WeightStore::dummy(*device, shape, Format::kF32, 1, {}).value();
  const Cache cache = GENERATE(Cache::kAmple, Cache::kTightOneSize, Cache::kTightMixed);
  size_t most_at_once = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed << ", cache " << static_cast<int>(cache));
    const Case made = random_case(seed, cache, shape);
    const auto log = std::make_shared<SweepLog>();
    EngineOptions options;
    options.sweep_tokens_max = sweep_tokens_max(shape, made.options);
    options.kv_bytes = made.kv_bytes;
    options.log = log;
    auto engine = Engine::open(*device, *weights, options).value();
    const SweepLimits limits{.block_sequences = made.options.block_sequences_max,
                             .prefill_tokens = made.options.prefill_tokens_max,
                             .prefill_target = made.options.prefill_target,
                             .kv_bytes = engine->kv().total_bytes()};
    std::vector<KvReservation> reservations;
    for (const RequestGroup& group : made.groups) {
      const int64_t positions = kv_positions(group.prompt_tokens, group.new_tokens);
      const KvBudget budget =
          resolve(apply(group.kv, made.options.kv_rule), group.prompt_tokens, group.new_tokens);
      const KvChunks chunks = chunks_of(group.prompt_tokens, made.options.prefill_tokens_max);
      reservations.push_back(
          {engine->kv().sequence_bytes(positions, budget, chunks), budget.rows(positions)});
      reservations.back().keeps_all_rows = budget.full() && !window;
      if (!window) continue;
      reservations.back().window = 9;
      reservations.back().window_rows_max = budget.within(9, positions).rows(positions);
      reservations.back().window_share = 0.5;
    }
    const std::vector<Sweep> planned = unfolded(plan_sweeps(made.groups, reservations, limits));

    std::vector<Request> requests;
    for (const RequestGroup& group : made.groups) {
      requests.insert(requests.end(), static_cast<size_t>(group.count), request_of(group));
    }
    const std::vector<Sweep> ran =
        ran_sweeps(std::move(engine), made.options, *log,
                   request_of({.prompt_tokens = 1, .new_tokens = 1}), requests);
    for (const Sweep& sweep : ran) {
      most_at_once = std::max(most_at_once, static_cast<size_t>(sweep.logit_rows));
    }
    if (cache != Cache::kTightMixed) {
      CHECK(ran == planned);
      continue;
    }
    CHECK(total_tokens(ran) == total_tokens(planned));
    CHECK(ran.size() >= planned.size() * 9 / 10);
    CHECK(ran.size() <= planned.size() * 3 / 2 + 2);
  }
  CHECK(most_at_once >= 4);
}

TEST_CASE(
    "planned sweeps of prompts that share their beginning are those that the scheduler runs") {
  constexpr int64_t kShared = 48;
  ModelShape shape = test::tiny_shape();
  shape.positions = 128;
  const auto device = open_cpu_device(1).value();
  const auto weights = WeightStore::dummy(*device, shape, Format::kF32, 1, {}).value();
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    INFO("seed " << seed);
    Case made = random_case(seed, Cache::kAmple, shape);
    made.options.prefix_cache_bytes = uint64_t{1} << 40;
    made.kv_bytes *= 8;
    const auto log = std::make_shared<SweepLog>();
    EngineOptions options;
    options.sweep_tokens_max = sweep_tokens_max(shape, made.options);
    options.kv_bytes = made.kv_bytes;
    options.log = log;
    auto engine = Engine::open(*device, *weights, options).value();
    const SweepLimits limits{.block_sequences = made.options.block_sequences_max,
                             .prefill_tokens = made.options.prefill_tokens_max,
                             .prefill_target = made.options.prefill_target,
                             .kv_bytes = made.kv_bytes};
    std::vector<KvReservation> reservations;
    std::vector<Request> requests;
    for (RequestGroup& group : made.groups) {
      group.kv = {};
      group.prompt_tokens += kShared;
      group.shared_tokens = kShared;
      const int64_t positions = kv_positions(group.prompt_tokens, group.new_tokens);
      reservations.push_back({engine->kv().sequence_bytes(positions - kShared), positions});
      reservations.back().keeps_all_rows = true;
      for (int64_t i = 0; i < group.count; ++i) {
        requests.push_back(request_of(group));
        // Each goes on in its own way.
        requests.back().prompt[kShared] = static_cast<int32_t>(10 + requests.size());
      }
    }
    // The first one leaves the beginning in the cache.
    const RequestGroup first{.prompt_tokens = kShared + 1, .new_tokens = 1};
    const std::vector<Sweep> ran =
        ran_sweeps(std::move(engine), made.options, *log, request_of(first), requests);
    const std::vector<Sweep> planned = unfolded(plan_sweeps(made.groups, reservations, limits));
    // The first one may take several sweeps.
    REQUIRE(ran.size() >= planned.size());
    CHECK(std::vector<Sweep>(ran.end() - static_cast<ptrdiff_t>(planned.size()), ran.end()) ==
          planned);
  }
}

}  // namespace
}  // namespace spillway::planned_sweeps_test
