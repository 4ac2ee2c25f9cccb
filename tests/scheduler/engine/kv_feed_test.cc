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

// All KV on disk, everything else in memory.
struct Fixture {
  explicit Fixture(FakeIo& io) : transfers(io, nullptr) {
    weights = WeightStore::dummy(*device, shape, Format::kF32, 1, {}).value();
    EngineOptions options;
    const KvLayout kv = kv_layout(shape, Format::kF32);
    options.kv_disk_bytes = kFileBytes;
    options.kv_staging_bytes = 4 * kv.sequence_bytes(64);
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
        const SpillUse use = f.engine->kv().use(*caches[i], layer, prompt + step - 1, 1);
        expected += round_up(use.read_bytes, kIoAlignment);
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
