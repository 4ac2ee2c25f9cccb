// The last layer goes on with the rows whose logits are asked for: their bits do not depend on
// which others are.
#include <catch2/catch.hpp>
#include <map>
#include <utility>

#include "scheduler/engine/engine.h"
#include "tests/support/tiny_shape.h"

namespace spillway::last_layer_test {
namespace {

// Logits by item and token.
class Kept final : public LogitsSink {
 public:
  void on_logits(size_t item, int64_t token, std::span<float> logits) override {
    rows[{item, token}] = {logits.begin(), logits.end()};
  }
  void on_failure(size_t, const Status& status) override { CHECK(status.ok()); }

  std::map<std::pair<size_t, int64_t>, std::vector<float>> rows;
};

enum class Asked { kNone, kLast, kAll };

class Fixture {
 public:
  explicit Fixture(NormPlace place) : shape_(test::tiny_shape(3)) {
    shape_.norm_place = place;
    shape_.final_norm = place == NormPlace::kPre;
    weights_ = WeightStore::dummy(*device_, shape_, Format::kF32, 3, {}).value();
  }

  // The logits of prompts of these lengths, all in one micro-batch, and of a step of each after.
  std::map<std::pair<size_t, int64_t>, std::vector<float>> run(const std::vector<int64_t>& lengths,
                                                               const std::vector<Asked>& asked,
                                                               const KvBudget& budget) {
    EngineOptions options;
    options.kv_bytes = 1 << 20;
    options.sweep_tokens_max = 64;
    const auto engine = Engine::open(*device_, *weights_, options).value();
    std::vector<std::unique_ptr<KvSequence>> caches;
    std::vector<SweepItem> items;
    for (size_t i = 0; i < lengths.size(); ++i) {
      caches.push_back(engine->reserve(32, budget).value());
      items.push_back({.tokens = std::span(tokens_).subspan(i, static_cast<size_t>(lengths[i])),
                       .kv = caches.back().get(),
                       .all_logits = asked[i] == Asked::kAll,
                       .no_logits = asked[i] == Asked::kNone});
    }
    Kept sink;
    REQUIRE(engine->run(items, sink).ok());
    Kept steps;
    for (SweepItem& item : items) {
      item.position = static_cast<int64_t>(item.tokens.size());
      item.tokens = std::span(tokens_).first(1);
      item.all_logits = item.no_logits = false;
    }
    REQUIRE(engine->run(items, steps).ok());
    for (auto& [key, row] : steps.rows) sink.rows[{key.first, -1}] = row;
    for (auto& cache : caches) engine->release(std::move(cache));
    return sink.rows;
  }

 private:
  ModelShape shape_;
  std::unique_ptr<Device> device_ = open_cpu_device(2).value();
  std::unique_ptr<WeightStore> weights_;
  const std::vector<int32_t> tokens_ = {7, 3, 9, 2, 11, 5, 8, 1, 12, 4, 6, 10, 13, 7, 2, 9};
};

TEST_CASE("a row's logits do not depend on which other rows' are asked for") {
  Fixture fixture(GENERATE(NormPlace::kPre, NormPlace::kPost));
  const KvBudget budget = GENERATE(KvBudget{}, KvBudget{2, 3, true}, KvBudget{4, 0, false});
  const std::vector<int64_t> lengths = {6, 1, 9, 4};
  const auto every = fixture.run(lengths, std::vector(4, Asked::kAll), budget);
  REQUIRE(every.size() == 6 + 1 + 9 + 4 + 4);
  for (const std::vector<Asked>& asked : std::vector<std::vector<Asked>>{
           {Asked::kLast, Asked::kLast, Asked::kLast, Asked::kLast},
           {Asked::kNone, Asked::kLast, Asked::kNone, Asked::kLast},
           {Asked::kAll, Asked::kNone, Asked::kLast, Asked::kNone},
           {Asked::kLast, Asked::kLast, Asked::kAll, Asked::kLast},  // More than half of the rows
           {Asked::kNone, Asked::kNone, Asked::kNone, Asked::kNone}}) {
    const auto some = fixture.run(lengths, asked, budget);
    size_t expected = lengths.size();
    for (size_t i = 0; i < asked.size(); ++i) {
      expected += asked[i] == Asked::kNone  ? 0
                  : asked[i] == Asked::kAll ? static_cast<size_t>(lengths[i])
                                            : 1;
    }
    CHECK(some.size() == expected);
    for (const auto& [key, row] : some) {
      INFO("item " << key.first << ", token " << key.second);
      REQUIRE(every.contains(key));
      CHECK(row == every.at(key));
    }
  }
}

}  // namespace
}  // namespace spillway::last_layer_test
