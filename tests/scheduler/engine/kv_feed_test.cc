// What a sweep will begin with is read while the one before ends, and not again.
#include <catch2/catch.hpp>
#include <thread>

#include "kernels/base/checked_math.h"
#include "kernels/base/clock.h"
#include "scheduler/engine/engine.h"
#include "tests/support/fake_io.h"
#include "tests/support/tiny_shape.h"

namespace spillway::kv_feed_test {
namespace {

using test::FakeIo;

constexpr uint64_t kFileBytes = uint64_t{4} << 20;
constexpr int64_t kSteps = 5;  // Of decode
constexpr size_t kSequences = 3;

class Ignored final : public LogitsSink {
 public:
  void on_logits(size_t, int64_t, std::span<float>) override {}
  void on_failure(size_t, const Status& status) override { CHECK(status.ok()); }
};

// KV on disk, or as much of it as is not in memory; everything else in memory.
struct Fixture {
  explicit Fixture(FakeIo& io, uint64_t memory_bytes = 0, uint64_t disk_bytes = kFileBytes)
      : transfers(io, nullptr) {
    shape.positions = 256;
    weights = WeightStore::dummy(*device, shape, Format::kF32, 1, {}).value();
    EngineOptions options;
    const KvLayout kv = kv_layout(shape, Format::kF32);
    options.kv_bytes = memory_bytes;
    options.kv_disk_bytes = disk_bytes;
    options.kv_staging_bytes = 4 * kv.sequence_bytes(256);
    options.sweep_tokens_max = 64;
    options.log = log;
    EngineScratch scratch;
    scratch.transfers = &transfers;
    scratch.kv = test::memory_file(kFileBytes);
    engine = Engine::open(*device, *weights, options, std::move(scratch)).value();
  }

  static std::vector<int32_t> prompt_of(size_t sequence) {
    return std::vector<int32_t>(7 + 9 * sequence, static_cast<int32_t>(5 + sequence));
  }
  static int64_t rows_of(size_t sequence) {
    return static_cast<int64_t>(prompt_of(sequence).size()) + kSteps;
  }

  ModelShape shape = test::tiny_shape(4);
  std::unique_ptr<Device> device = open_cpu_device(1).value();
  TransferQueue transfers;
  std::unique_ptr<WeightStore> weights;
  std::shared_ptr<SweepLog> log = std::make_shared<SweepLog>();
  std::unique_ptr<Engine> engine;
};

TEST_CASE("KV on disk is read once for every sweep, the first layer ahead of it") {
  const bool limited = GENERATE(false, true);
  FakeIo io({.seed = 11});
  Fixture f(io);
  const KvBudget budget = limited ? KvBudget{.recent = 4, .kept = 3, .by_score = true} : KvBudget{};
  std::vector<std::unique_ptr<KvSequence>> caches;
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < kSequences; ++i) {
    prompts.push_back(Fixture::prompt_of(i));
    caches.push_back(f.engine->reserve(Fixture::rows_of(i), budget).value());
  }
  const std::vector<int32_t> token = {9};
  Ignored sink;
  uint64_t expected = 0;
  for (int64_t step = 0; step <= kSteps; ++step) {
    std::vector<SweepItem> items;
    for (size_t i = 0; i < kSequences; ++i) {
      const auto prompt = static_cast<int64_t>(prompts[i].size());
      items.push_back({.tokens = step == 0 ? prompts[i] : token,
                       .position = step == 0 ? 0 : prompt + step - 1,
                       .kv = caches[i].get()});
      if (step == 0) continue;
      for (int64_t layer = 0; layer < caches[i]->layers.count; ++layer) {
        REQUIRE(caches[i]->on_disk(layer));
        std::vector<SpillUse> uses;
        f.engine->kv().add_uses(*caches[i], layer, prompt + step - 1, 1, &uses);
        for (const SpillUse& use : uses) expected += round_up(use.read_bytes, kIoAlignment);
      }
    }
    REQUIRE(f.engine->run(items, sink).ok());
    if (step > 0) continue;
    // Prompts read nothing: this is what comes next.
    const double deadline = steady_seconds() + 60;
    while (io.reads() < kSequences && steady_seconds() < deadline) std::this_thread::yield();
    CHECK(io.reads() == kSequences);
  }
  uint64_t read = 0;
  for (const SweepWork& work : f.log->take()) read += work.disk_read_bytes;
  CHECK(read == expected);
  for (auto& cache : caches) f.engine->release(std::move(cache));
  f.engine->kv().verify();
}

class Logits final : public LogitsSink {
 public:
  void on_logits(size_t, int64_t, std::span<float> logits) override {
    all.insert(all.end(), logits.begin(), logits.end());
  }
  void on_failure(size_t, const Status& status) override { CHECK(status.ok()); }

  std::vector<float> all;
};

// Of sequences in a cache of which only every second block was free, or in an empty one.
std::vector<float> logits_of(uint64_t memory_bytes, uint64_t disk_bytes, bool in_pieces,
                             size_t* pieces) {
  FakeIo io({.seed = 12});
  Fixture f(io, memory_bytes, disk_bytes);
  constexpr int64_t kRows = 160;  // Whole blocks
  std::vector<std::unique_ptr<KvSequence>> held, caches;
  if (in_pieces) {
    for (auto got = f.engine->reserve(16); got.ok(); got = f.engine->reserve(16)) {
      held.push_back(std::move(got).value());
    }
    REQUIRE(held.size() > 40);
    for (size_t i = 0; i < held.size(); i += 2) f.engine->release(std::move(held[i]));
  }
  for (size_t i = 0; i < 2; ++i) caches.push_back(f.engine->reserve(kRows).value());
  for (const auto& cache : caches) {
    for (const KvSequence::Place& place : cache->places) {
      *pieces = std::max(*pieces, place.runs.size());
    }
  }
  Logits sink;
  const auto run = [&](int64_t position, const std::vector<int32_t>& tokens, int64_t prompt) {
    std::vector<SweepItem> items;
    for (const auto& cache : caches) {
      items.push_back(
          {.tokens = tokens, .position = position, .prompt = prompt, .kv = cache.get()});
    }
    REQUIRE(f.engine->run(items, sink).ok());
  };
  run(0, std::vector<int32_t>(30, 3), 0);
  for (int64_t step = 0; step < kRows - 30; ++step) {
    run(30 + step, {static_cast<int32_t>(step % 7)}, 0);
  }
  // The rows come back in their order.
  std::vector<std::byte> state, rows;
  for (int64_t layer = 0; layer < caches[1]->layers.count; ++layer) {
    REQUIRE(f.engine->read_kv(*caches[1], layer, kRows, &state, &rows).ok());
    CHECK(state.empty());
    CHECK(rows.size() == f.engine->kv().layout().sequence_bytes(kRows));
    const auto* numbers = reinterpret_cast<const float*>(rows.data());
    sink.all.insert(sink.all.end(), numbers, numbers + rows.size() / sizeof(float));
  }
  for (auto& cache : caches) f.engine->release(std::move(cache));
  for (auto& one : held) {
    if (one != nullptr) f.engine->release(std::move(one));
  }
  f.engine->kv().verify();
  CHECK(f.engine->kv().reserved_bytes() == 0);
  return std::move(sink.all);
}

TEST_CASE("a cache in pieces gives the bits of one in a piece, from memory and from disk") {
  const uint64_t memory = GENERATE(0u, 1u << 20, 2u << 20);
  const uint64_t disk = memory == 2u << 20 ? 0 : kFileBytes / 2;
  size_t whole = 0, pieces = 0;
  const std::vector<float> expected = logits_of(memory, disk, false, &whole);
  const std::vector<float> found = logits_of(memory, disk, true, &pieces);
  CHECK(whole == 1);
  CHECK(pieces > 1);
  CHECK(expected.size() > 0);
  CHECK(found == expected);
}

TEST_CASE("a sequence leaves while its cache is being read ahead") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    INFO("seed " << seed);
    FakeIo io({.seed = seed});
    Fixture f(io);
    std::vector<std::unique_ptr<KvSequence>> caches;
    std::vector<std::vector<int32_t>> prompts;
    std::vector<SweepItem> items;
    Ignored sink;
    for (size_t i = 0; i < kSequences; ++i) {
      prompts.push_back(Fixture::prompt_of(i));
      caches.push_back(f.engine->reserve(Fixture::rows_of(i)).value());
    }
    for (size_t i = 0; i < kSequences; ++i) {
      items.push_back({.tokens = prompts[i], .kv = caches[i].get()});
    }
    REQUIRE(f.engine->run(items, sink).ok());
    const size_t gone = seed % kSequences;
    f.engine->release(std::move(caches[gone]));
    const std::vector<int32_t> token = {9};
    items.clear();
    for (size_t i = 0; i < kSequences; ++i) {
      if (i == gone) continue;
      items.push_back({.tokens = token,
                       .position = static_cast<int64_t>(prompts[i].size()),
                       .kv = caches[i].get()});
    }
    REQUIRE(f.engine->run(items, sink).ok());
    for (auto& cache : caches) {
      if (cache != nullptr) f.engine->release(std::move(cache));
    }
    f.engine->kv().verify();
  }
}

}  // namespace
}  // namespace spillway::kv_feed_test
