// Sampling where the logits are: the engine tells what was drawn, and only rows of which more is
// wanted cross the link.
//
// SPILLWAY_EMULATION_SEED: 1
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>

#include "scheduler/engine/engine.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/tiny_shape.h"

namespace spillway::cuda_sample_test {
namespace {

class Kept final : public LogitsSink {
 public:
  void on_logits(size_t item, int64_t, std::span<float> row) override {
    logits[item].assign(row.begin(), row.end());
  }
  void on_sampled(size_t item, int64_t, int32_t index) override { sampled[item] = index; }
  void on_failure(size_t, const Status&) override { CHECK(false); }

  std::map<size_t, std::vector<float>> logits;
  std::map<size_t, int32_t> sampled;
};

struct Fixture {
  explicit Fixture(std::unique_ptr<Device> opened) : device(std::move(opened)) {
    weights = WeightStore::dummy(*device, shape, Format::kF32, 3, {}).value();
    EngineOptions options;
    options.kv_bytes = kv_layout(shape, Format::kF32).sequence_bytes(8) * 2 * kItems;
    options.sweep_tokens_max = 3 * kItems;
    engine = Engine::open(*device, *weights, options).value();
  }

  // Makes the embedding of a token NaN.
  void damage(int32_t token) {
    const auto stream = device->new_stream("test");
    const WeightMatrix& tokens =
        weights->acquire_embedding().value()->matrix(WeightRole::kTokenEmbedding);
    REQUIRE(token < tokens.slab_rows);
    const float nan = std::nanf("");
    const size_t at = static_cast<size_t>(token) * static_cast<size_t>(tokens.columns) * 4;
    stream->copy(const_cast<std::byte*>(tokens.slabs[0].data) + at,
                 reinterpret_cast<const std::byte*>(&nan), sizeof(nan));
    REQUIRE(stream->record().wait().ok());
    weights->release_embedding();
    weights->restart();
  }

  // More than one part of the head, every third item whole.
  Kept run(const SampleRule& rule) {
    std::vector<std::unique_ptr<KvSequence>> caches;
    std::vector<std::vector<int32_t>> prompts;
    for (int32_t i = 0; i < kItems; ++i) prompts.push_back({i + 3, 2 * i % 97, 50 - i % 40});
    std::vector<SweepItem> items;
    for (int32_t i = 0; i < kItems; ++i) {
      caches.push_back(engine->reserve(8).value());
      items.push_back({.tokens = prompts[static_cast<size_t>(i)],
                       .kv = caches.back().get(),
                       .sample = i % 3 == 0 ? SampleRule{} : rule_of(i, rule)});
    }
    Kept kept;
    REQUIRE(engine->run(items, kept).ok());
    for (auto& cache : caches) engine->release(std::move(cache));
    return kept;
  }

  // Every item draws by a number of its own.
  static SampleRule rule_of(int32_t item, SampleRule rule) {
    if (rule.temperature > 0) rule.uniform = (item + 0.5) / kItems;
    return rule;
  }

  static constexpr int32_t kItems = 80;
  ModelShape shape = test::tiny_shape();
  std::unique_ptr<Device> device;
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Engine> engine;
};

TEST_CASE("a device with memory of its own draws as the host would", "[slow]") {
  Fixture fixture(open_cuda_device(0).value());
  const Kept whole = fixture.run({});
  REQUIRE(whole.logits.size() == Fixture::kItems);
  CHECK(whole.sampled.empty());
  for (const SampleRule& rule :
       {SampleRule{.count = 1}, SampleRule{.count = 60}, SampleRule{.count = 100},
        SampleRule{.count = 100, .temperature = 1},
        SampleRule{.count = 90, .temperature = 0.5f, .top_p = 0.8f},
        SampleRule{.count = 100, .temperature = 2, .top_k = 7, .min_p = 0.1f}}) {
    INFO("of " << rule.count << ", temperature " << rule.temperature);
    const uint64_t before = fake_cudart::bytes_to_host();
    const Kept kept = fixture.run(rule);
    const uint64_t crossed = fake_cudart::bytes_to_host() - before;
    CHECK(kept.logits.size() == 27);
    REQUIRE(kept.sampled.size() == 53);
    // 27 rows and 4 bytes for each of 80.
    CHECK(crossed == 27 * 100 * 4 + 80 * 4);
    for (const auto& [item, index] : kept.sampled) {
      std::vector<float> row = whole.logits.at(item);
      CHECK(index == sample(row, Fixture::rule_of(static_cast<int32_t>(item), rule)));
    }
    for (const auto& [item, row] : kept.logits) CHECK(row == whole.logits.at(item));
  }
}

TEST_CASE("a row of which nothing can be drawn comes whole, whatever was queued behind it") {
  Fixture fixture(open_cuda_device(0).value());
  fixture.damage(5);
  const Kept whole = fixture.run({});
  const SampleRule rule{.count = 100, .temperature = 1};
  const Kept kept = fixture.run(rule);
  size_t damaged = 0, sampled = 0;
  for (int32_t i = 0; i < Fixture::kItems; ++i) {
    const auto item = static_cast<size_t>(i);
    std::vector<float> row = whole.logits.at(item);
    const int32_t expected = sample(row, Fixture::rule_of(i, rule));
    row = whole.logits.at(item);
    INFO("item " << i);
    if (i % 3 == 0 || expected < 0) {
      const std::vector<float>& found = kept.logits.at(item);
      REQUIRE(found.size() == row.size());
      CHECK(std::memcmp(found.data(), row.data(), row.size() * sizeof(float)) == 0);
      damaged += i % 3 == 0 ? 0 : 1;
    } else {
      CHECK(kept.sampled.at(item) == expected);
      ++sampled;
    }
  }
  CHECK(damaged > 0);
  CHECK(sampled > 0);
}

TEST_CASE(
    "where the host reads logits in place plain rows are drawn there, the others come whole") {
  Fixture fixture(open_cpu_device(1).value());
  const Kept whole = fixture.run({});
  REQUIRE(whole.logits.size() == Fixture::kItems);
  const SampleRule rule{.count = 100, .temperature = 1, .top_p = 0.9f};
  const Kept kept = fixture.run(rule);
  CHECK(kept.logits.size() == 27);
  REQUIRE(kept.sampled.size() == 53);
  for (const auto& [item, index] : kept.sampled) {
    std::vector<float> row = whole.logits.at(item);
    CHECK(index == sample(row, Fixture::rule_of(static_cast<int32_t>(item), rule)));
  }
}

}  // namespace
}  // namespace spillway::cuda_sample_test
