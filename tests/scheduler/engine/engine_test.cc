// The engine with everything on a disk that answers out of order and goes wrong: tokens are those
// of the run in memory or the sequence fails, with a reason; what one disk error spoils stays
// small, and the engine goes on.
#include <catch2/catch.hpp>
#include <random>

#include "scheduler/block_scheduler.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/fake_io.h"
#include "tests/support/gate_sink.h"
#include "tests/support/tiny_shape.h"

namespace spillway::engine_test {
namespace {

using test::CollectingSink;
using test::FakeIo;
using test::IoFault;

constexpr uint64_t kFileBytes = uint64_t{4} << 20;

// Scheduler, engine and weights; on disk: `weights_share` of the weights, all KV, some activations.
struct Spilled {
  explicit Spilled(FakeIo* io, double weights_share = 1, bool overlap = true) {
    if (io != nullptr) transfers.emplace(*io, nullptr);
    const ModelShape shape = test::tiny_shape(4);
    const ModelFileTable table =
        plan_model_file(shape, Format::kF32, device->matrix_layout(Format::kF32));
    WeightStoreOptions options;
    EngineOptions engine;
    EngineScratch scratch;
    SchedulerOptions scheduling;
    scheduling.block_sequences_max = 6;
    scheduling.prefill_tokens_max = 64;
    engine.micro_batch_sequences = 2;
    engine.overlap = overlap;
    engine.sweep_tokens_max = sweep_tokens_max(shape, scheduling);
    const KvLayout kv = kv_layout(shape, Format::kF32);
    if (io == nullptr) {
      engine.kv_bytes = kv.sequence_bytes(64) * 4 * 6;
    } else {
      options.placement = place_weights(
          table, static_cast<uint64_t>(weights_share * static_cast<double>(table.weight_bytes())));
      options.transfers = scratch.transfers = &*transfers;
      options.scratch = test::memory_file(kFileBytes);
      options.prefetch = overlap;
      engine.kv_bytes = kv.sequence_bytes(64) * 2;
      engine.kv_disk_bytes = kFileBytes;
      engine.kv_staging_bytes = 3 * kv.sequence_bytes(64);
      engine.activations_disk_share = 0.5;
      scratch.kv = test::memory_file(kFileBytes);
      scratch.activations = test::memory_file(kFileBytes);
      kv_path = scratch.kv.path();
      weights_path = options.scratch.path();
      activations_path = scratch.activations.path();
    }
    weights = WeightStore::dummy(*device, shape, Format::kF32, 1, std::move(options)).value();
    scheduler = start_scheduler(Engine::open(*device, *weights, engine, std::move(scratch)).value(),
                                scheduling);
  }

  std::unique_ptr<Device> device = open_cpu_device(1).value();
  std::optional<TransferQueue> transfers;
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Scheduler> scheduler;
  std::string kv_path, weights_path, activations_path;
};

std::vector<Request> make_requests(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Request> requests(10);
  for (Request& request : requests) {
    const auto prompt = 1 + random() % 40;
    for (uint64_t t = 0; t < prompt; ++t) {
      request.prompt.push_back(static_cast<int32_t>(random() % 100));
    }
    request.max_tokens = static_cast<int32_t>(1 + random() % 12);
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    // Half of them keep a part of their cache only, whose scores and moved rows travel, too.
    if (random() % 2 == 0) continue;
    request.kv.kind = random() % 3 == 0 ? KvRuleKind::kWindow : KvRuleKind::kH2o;
    request.kv.recent = KvAmount{static_cast<int64_t>(1 + random() % 12), 0};
    if (request.kv.kind == KvRuleKind::kH2o) {
      request.kv.heavy = KvAmount{static_cast<int64_t>(random() % 12), 0};
    } else {
      request.kv.keep = static_cast<int64_t>(random() % 5);
    }
  }
  return requests;
}

struct Outcome {
  std::vector<int32_t> tokens;
  Status status;
};

std::vector<Outcome> run(Scheduler& scheduler, const std::vector<Request>& requests) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (size_t i = 0; i < requests.size(); ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    REQUIRE(scheduler.submit(requests[i], sinks.back()).ok());
    if (i == 6) sinks[2]->wait_tokens(1);  // The rest arrives in mid-run.
  }
  std::vector<Outcome> outcomes;
  for (const auto& sink : sinks) {
    const Finish finish = sink->wait();
    outcomes.push_back({sink->tokens, finish.status});
  }
  return outcomes;
}

std::vector<Outcome> expected_of(const std::vector<Request>& requests) {
  return run(*Spilled(nullptr).scheduler, requests);
}

// Every sequence has the right tokens, or failed and had none that are wrong. How many failed.
int check_outcomes(const std::vector<Outcome>& outcomes, const std::vector<Outcome>& expected) {
  int failed = 0;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    INFO("sequence " << i << ": " << outcomes[i].status.message());
    const std::vector<int32_t>& right = expected[i].tokens;
    if (outcomes[i].status.ok()) {
      CHECK(outcomes[i].tokens == right);
      continue;
    }
    ++failed;
    CHECK(outcomes[i].tokens.size() < right.size());
    CHECK(std::equal(outcomes[i].tokens.begin(), outcomes[i].tokens.end(), right.begin()));
  }
  return failed;
}

TEST_CASE("tokens do not depend on the order in which the disk answers") {
  const uint64_t first = GENERATE(range(0, 10)) * 20;
  const std::vector<Request> requests = make_requests(first);
  const auto expected = expected_of(requests);
  for (uint64_t seed = first; seed < first + 20; ++seed) {
    INFO("seed " << seed);
    FakeIo io({.seed = seed, .threads = 1 + static_cast<int>(seed % 3)});
    Spilled spilled(&io, seed % 4 * 0.33 + 0.01, seed % 5 != 0);
    CHECK(check_outcomes(run(*spilled.scheduler, requests), expected) == 0);
    CHECK(io.reads() > 0);
    CHECK(spilled.scheduler->stats().kv_bytes_used == 0);
  }
}

// A disk that fails here and there: no wrong token, and later requests are served.
void check_faults(IoFault fault, const std::string Spilled::*path, Code code) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    INFO("seed " << seed);
    const std::vector<Request> requests = make_requests(seed);
    const auto expected = expected_of(requests);
    FakeIo io({.seed = seed});
    Spilled spilled(&io);
    fault.path_part = spilled.*path;
    fault.skip = 3 + 3 * seed;
    fault.count = 60;  // Longer than what is under way: a read that is tried again fails again.
    io.add_fault(fault);
    const auto outcomes = run(*spilled.scheduler, requests);
    const int failed = check_outcomes(outcomes, expected);
    CHECK(failed > 0);
    for (const Outcome& outcome : outcomes) {
      if (!outcome.status.ok()) CHECK(outcome.status.code() == code);
    }
    io.clear_faults();
    CHECK(spilled.scheduler->stats().healthy);
    CHECK(check_outcomes(run(*spilled.scheduler, requests), expected) == 0);
    CHECK(spilled.scheduler->stats().kv_bytes_used == 0);
  }
}

TEST_CASE("weights that cannot be read fail the sweep's sequences and nothing later") {
  check_faults({.effect = IoFault::Effect::kError}, &Spilled::weights_path, Code::kIoError);
  check_faults({.effect = IoFault::Effect::kFlipBit}, &Spilled::weights_path, Code::kCorruption);
}

TEST_CASE("statistics tell the sweeps that failed one after another, until one succeeds") {
  const Request request = make_requests(3).front();
  FakeIo io({.seed = 3});
  Spilled spilled(&io);
  IoFault fault;
  fault.path_part = spilled.weights_path;
  io.add_fault(fault);
  for (int64_t failed = 1; failed <= 4; ++failed) {
    CHECK_FALSE(run(*spilled.scheduler, {request}).front().status.ok());
    CHECK(spilled.scheduler->stats().failures_in_a_row == failed);
  }
  const double ago = spilled.scheduler->stats().failed_seconds_ago;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(spilled.scheduler->stats().failed_seconds_ago >= ago + 0.02);
  io.clear_faults();
  CHECK(run(*spilled.scheduler, {request}).front().status.ok());
  CHECK(spilled.scheduler->stats().failures_in_a_row == 0);
  CHECK(spilled.scheduler->stats().failed_seconds_ago == 0);
  CHECK(spilled.scheduler->stats().sweeps_failed == 4);
  CHECK(spilled.scheduler->stats().healthy);
}

TEST_CASE("KV that cannot be read or came back different fails its sequences") {
  check_faults({.effect = IoFault::Effect::kError}, &Spilled::kv_path, Code::kIoError);
  check_faults({.effect = IoFault::Effect::kFlipBit}, &Spilled::kv_path, Code::kCorruption);
}

TEST_CASE("KV that cannot be written fails its sequences") {
  check_faults(
      {.effect = IoFault::Effect::kError, .kind = IoRequest::Kind::kWrite, .error = ENOSPC},
      &Spilled::kv_path, Code::kIoError);
}

// A flipped bit would mostly hit the padding of so few rows, which nobody reads.
TEST_CASE("activations that cannot be read fail the sweep's sequences and nothing later") {
  check_faults({.effect = IoFault::Effect::kError}, &Spilled::activations_path, Code::kIoError);
}

TEST_CASE("one bad read or one flipped bit is read again, and nobody notices") {
  for (const auto effect : {IoFault::Effect::kError, IoFault::Effect::kFlipBit}) {
    const std::vector<Request> requests = make_requests(5);
    const auto expected = expected_of(requests);
    FakeIo io({.seed = 5});
    Spilled spilled(&io);
    for (const std::string& path : {spilled.kv_path, spilled.weights_path}) {
      io.add_fault({.effect = effect, .path_part = path, .skip = 9, .count = 1});
    }
    CHECK(check_outcomes(run(*spilled.scheduler, requests), expected) == 0);
  }
}

TEST_CASE("one sequence's bad block leaves its neighbours alone") {
  const std::vector<Request> requests = make_requests(6);
  const auto expected = expected_of(requests);
  FakeIo io({.seed = 6});
  Spilled spilled(&io);
  // The first sequence's place in the file, read and read again.
  io.add_fault(
      {.effect = IoFault::Effect::kFlipBit, .path_part = spilled.kv_path, .end = 4096, .count = 2});
  CHECK(check_outcomes(run(*spilled.scheduler, requests), expected) == 1);
}

TEST_CASE("a slow disk changes nothing but the time") {
  const std::vector<Request> requests = make_requests(7);
  const auto expected = expected_of(requests);
  FakeIo io({.seed = 7});
  Spilled spilled(&io);
  io.add_fault({.effect = IoFault::Effect::kSlow, .count = 40, .seconds = 0.002});
  CHECK(check_outcomes(run(*spilled.scheduler, requests), expected) == 0);
}

TEST_CASE("statistics tell where the time of sweeps went, and what went over which link") {
  const std::vector<Request> requests = make_requests(7);
  FakeIo io({.seed = 7});
  Spilled spilled(&io);
  io.add_fault({.effect = IoFault::Effect::kSlow, .count = 400, .seconds = 0.002});
  run(*spilled.scheduler, requests);
  const SchedulerStats stats = spilled.scheduler->stats();
  const SweepSeconds& parts = stats.seconds;
  CHECK(parts.compute > 0);
  CHECK(parts.weights > 0);
  CHECK(parts.compute + parts.weights + parts.kv + parts.activations + parts.staging +
            parts.other ==
        Approx(stats.busy_seconds));
  CHECK(stats.recent_seconds > 0);
  CHECK(stats.recent_seconds <= stats.busy_seconds * 1.000001);
  CHECK(stats.recent_tokens > 0);
  CHECK_FALSE(stats.bound_seconds.has_value());  // Nobody knows what this machine can do.
  const auto link = [&](Link which) { return stats.links[static_cast<size_t>(which)]; };
  REQUIRE(link(Link::kDiskToHost).has_value());
  REQUIRE(link(Link::kHostToDisk).has_value());
  CHECK(link(Link::kDiskToHost)->bytes > 0);
  CHECK(link(Link::kDiskToHost)->busy_seconds.value() > 0);
  CHECK(link(Link::kHostToDisk)->bytes > 0);
  CHECK(link(Link::kHostToDisk)->busy_seconds.value() > 0);
  // The CPU has no memory of its own to copy to.
  CHECK_FALSE(link(Link::kHostToDevice).has_value());
  CHECK_FALSE(link(Link::kDeviceToHost).has_value());

  const Spilled in_memory(nullptr);
  const LinkTable idle = in_memory.scheduler->stats().links;
  REQUIRE(idle[0].has_value());
  CHECK(idle[0]->bytes == 0);
  CHECK(idle[0]->busy_seconds == 0.0);
}

// A sink that breaks in the middle of a sweep, as running out of memory would.
class BrokenSink final : public LogitsSink {
 public:
  void on_logits(size_t, int64_t, std::span<float>) override { throw std::bad_alloc(); }
  void on_failure(size_t, const Status&) override {}
};

TEST_CASE("an exception in a sweep leaves nothing under way, and the next sweep runs") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    const auto device = open_cpu_device(1).value();
    const ModelShape shape = test::tiny_shape(4);
    const ModelFileTable table =
        plan_model_file(shape, Format::kF32, device->matrix_layout(Format::kF32));
    FakeIo io({.seed = seed});
    TransferQueue transfers(io, nullptr);
    WeightStoreOptions options;
    options.placement = place_weights(table, table.weight_bytes());
    options.transfers = &transfers;
    options.scratch = test::memory_file(kFileBytes);
    const auto weights =
        WeightStore::dummy(*device, shape, Format::kF32, 1, std::move(options)).value();
    EngineOptions engine_options;
    const KvLayout kv = kv_layout(shape, Format::kF32);
    engine_options.kv_disk_bytes = kFileBytes;
    engine_options.kv_staging_bytes = 3 * kv.sequence_bytes(64);
    engine_options.sweep_tokens_max = 64;
    EngineScratch scratch;
    scratch.transfers = &transfers;
    scratch.kv = test::memory_file(kFileBytes);
    const auto engine = Engine::open(*device, *weights, engine_options, std::move(scratch)).value();
    auto sequence = engine->reserve(40).value();
    const std::vector<int32_t> prompt = {3, 4, 5, static_cast<int32_t>(6 + seed)};
    const SweepItem item{.tokens = prompt, .kv = sequence.get()};
    BrokenSink broken;
    CHECK_THROWS_AS(engine->run(std::span(&item, 1), broken), std::bad_alloc);
    engine->release(std::move(sequence));
    sequence = engine->reserve(40).value();
    SweepItem again{.tokens = prompt, .kv = sequence.get(), .no_logits = true};
    CHECK(engine->run(std::span(&again, 1), broken).ok());
    engine->release(std::move(sequence));
    engine->kv().verify();
  }
}

TEST_CASE("cancelling while the disk is busy leaves nothing behind") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    FakeIo io({.seed = seed});
    Spilled spilled(&io);
    const auto held = std::make_shared<test::GateSink>();
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    std::vector<RequestId> ids;
    std::vector<Request> requests = make_requests(seed);
    requests.front().max_tokens = 12;
    for (const Request& request : requests) {
      if (ids.empty()) {
        ids.push_back(spilled.scheduler->submit(request, held).value());
        continue;
      }
      sinks.push_back(std::make_shared<CollectingSink>());
      ids.push_back(spilled.scheduler->submit(request, sinks.back()).value());
    }
    // The first sweep hands out its tokens, and what it wrote may still be on the way.
    held->wait_held();
    for (const RequestId id : ids) spilled.scheduler->cancel(id);
    held->open();
    CHECK(held->wait().reason == FinishReason::kCancelled);
    CHECK(held->tokens() == 1);
    for (size_t i = 0; i < sinks.size(); ++i) {
      const Finish finish = sinks[i]->wait();
      CHECK(sinks[i]->tokens.size() <= 1);
      const bool complete = requests[i + 1].max_tokens == 1 && sinks[i]->tokens.size() == 1;
      CHECK(finish.reason == (complete ? FinishReason::kLength : FinishReason::kCancelled));
    }
    CHECK(spilled.scheduler->stats().kv_bytes_used == 0);
  }
}

}  // namespace
}  // namespace spillway::engine_test
