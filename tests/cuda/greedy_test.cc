// Greedy sampling where the logits are: the engine tells which is highest, and only rows of which
// more is wanted cross the link.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "scheduler/engine/engine.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/tiny_shape.h"

namespace spillway {
namespace {

class Kept final : public LogitsSink {
 public:
  void on_logits(size_t item, int64_t, std::span<float> row) override {
    logits[item].assign(row.begin(), row.end());
  }
  void on_best(size_t item, int64_t, int32_t index) override { best[item] = index; }
  void on_failure(size_t, const Status&) override { CHECK(false); }

  std::map<size_t, std::vector<float>> logits;
  std::map<size_t, int32_t> best;
};

struct Fixture {
  explicit Fixture(std::unique_ptr<Device> opened) : device(std::move(opened)) {
    weights = WeightStore::dummy(*device, shape, DType::kF32, 3, {}).value();
    EngineOptions options;
    options.kv_bytes = kv_layout(shape, DType::kF32).sequence_bytes(8) * 2 * kItems;
    options.sweep_tokens_max = 3 * kItems;
    engine = Engine::open(*device, *weights, options).value();
  }

  // More than one flush of the head, every third item whole.
  Kept run(int32_t best_of) {
    std::vector<std::unique_ptr<KvSequence>> caches;
    std::vector<std::vector<int32_t>> prompts;
    for (int32_t i = 0; i < kItems; ++i) prompts.push_back({i + 3, 2 * i % 97, 50 - i % 40});
    std::vector<SweepItem> items;
    for (int32_t i = 0; i < kItems; ++i) {
      caches.push_back(engine->reserve(8).value());
      items.push_back({.tokens = prompts[static_cast<size_t>(i)],
                       .kv = caches.back().get(),
                       .best_of = i % 3 == 0 ? 0 : best_of});
    }
    Kept kept;
    REQUIRE(engine->run(items, kept).ok());
    for (auto& cache : caches) engine->release(std::move(cache));
    return kept;
  }

  static constexpr int32_t kItems = 80;
  ModelShape shape = test::tiny_shape();
  std::unique_ptr<Device> device;
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Engine> engine;
};

TEST_CASE("a device with memory of its own tells the highest logit, as the host would") {
  Fixture fixture(open_cuda_device(0).value());
  const Kept whole = fixture.run(0);
  REQUIRE(whole.logits.size() == Fixture::kItems);
  CHECK(whole.best.empty());
  for (const int32_t best_of : {1, 60, 100}) {
    INFO("of " << best_of);
    const uint64_t before = fake_cudart::bytes_to_host();
    const Kept kept = fixture.run(best_of);
    const uint64_t crossed = fake_cudart::bytes_to_host() - before;
    CHECK(kept.logits.size() == 27);
    REQUIRE(kept.best.size() == 53);
    // 27 rows and 4 bytes for each of 80.
    CHECK(crossed == 27 * 100 * 4 + 80 * 4);
    for (const auto& [item, best] : kept.best) {
      const std::vector<float>& row = whole.logits.at(item);
      CHECK(best == std::max_element(row.begin(), row.begin() + best_of) - row.begin());
    }
    for (const auto& [item, row] : kept.logits) CHECK(row == whole.logits.at(item));
  }
}

TEST_CASE("where the host reads logits in place it takes them whole") {
  Fixture fixture(open_cpu_device(1).value());
  const Kept kept = fixture.run(100);
  CHECK(kept.best.empty());
  CHECK(kept.logits.size() == Fixture::kItems);
}

}  // namespace
}  // namespace spillway
