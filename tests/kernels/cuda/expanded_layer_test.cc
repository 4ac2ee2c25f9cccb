// 4-bit weights that a layer expands once for all parts of a large block: the same logits as when
// every part does, and only where there are several.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <catch2/catch.hpp>

#include "scheduler/engine/engine.h"
#include "tests/support/tiny_shape.h"

namespace spillway::cuda_expanded_layer_test {
namespace {

class Kept final : public LogitsSink {
 public:
  void on_logits(size_t item, int64_t, std::span<float> row) override {
    if (logits.size() <= item) logits.resize(item + 1);
    logits[item].assign(row.begin(), row.end());
  }
  void on_failure(size_t, const Status& status) override { CHECK(status.ok()); }

  std::vector<std::vector<float>> logits;
};

// Logits of prompts of 3, 40 and 55 tokens, a micro-batch each.
std::vector<std::vector<float>> logits(Format format, bool expand_layer) {
  const ModelShape shape = test::tiny_shape(3);
  const auto device = open_cuda_device(0).value();
  const auto weights = WeightStore::dummy(*device, shape, format, 3, {}).value();
  EngineOptions options;
  options.kv_bytes = kv_layout(shape, Format::kF32).sequence_bytes(64) * 3 * 4;
  options.sweep_tokens_max = 128;
  options.micro_batch_sequences = 1;
  options.expand_layer = expand_layer;
  const auto engine = Engine::open(*device, *weights, options).value();
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::unique_ptr<KvSequence>> caches;
  std::vector<SweepItem> items;
  for (const size_t tokens : {3, 40, 55}) {
    prompts.emplace_back(tokens, static_cast<int32_t>(tokens));
    caches.push_back(engine->reserve(64).value());
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i][1] = 7;
    items.push_back({.tokens = prompts[i], .kv = caches[i].get()});
  }
  Kept kept;
  REQUIRE(engine->run(items, kept).ok());
  for (auto& cache : caches) engine->release(std::move(cache));
  return kept.logits;
}

TEST_CASE("weights expanded once for a block give the logits of weights expanded for each part") {
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8_1, Format::kQ8);
  const auto expected = logits(format, false), found = logits(format, true);
  REQUIRE(expected.size() == 3);
  REQUIRE(found.size() == 3);
  // Where nobody has expanded them few rows, such as the last one's in the last layer, are
  // multiplied by the codes, whose scales are not rounded to 16 bits.
  for (size_t i = 0; i < 3; ++i) {
    REQUIRE(found[i].size() == expected[i].size());
    for (size_t t = 0; t < found[i].size(); ++t) {
      CHECK(found[i][t] == Approx(expected[i][t]).margin(2e-3));
    }
  }
}

TEST_CASE("a block is worth expanding for when two parts of it would") {
  const auto again = [](std::vector<int64_t> rows) {
    std::vector<MicroBatch> batches;
    for (const int64_t count : rows) batches.push_back({0, 1, count});
    return expands_again(batches);
  };
  CHECK_FALSE(again({}));
  CHECK_FALSE(again({512}));
  CHECK_FALSE(again({512 + kFewRows}));
  CHECK(again({512 + kFewRows + 1}));
  CHECK_FALSE(again({kFewRows, kFewRows, kFewRows, 300}));
  CHECK(again({kFewRows + 1, 300}));
}

}  // namespace
}  // namespace spillway::cuda_expanded_layer_test
