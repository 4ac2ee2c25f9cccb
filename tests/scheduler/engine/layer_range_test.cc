// Engines that run ranges of a model's layers, one after the other on the rows that each hands on,
// give the bits of one that runs them all.
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <utility>

#include "scheduler/engine/engine.h"
#include "tests/support/fake_io.h"
#include "tests/support/tiny_shape.h"

namespace spillway::layer_range_test {
namespace {

constexpr int64_t kLayers = 5;
constexpr uint64_t kFileBytes = uint64_t{4} << 20;
constexpr int64_t kPositions = 32;

using Rows = std::map<std::pair<size_t, int64_t>, std::vector<float>>;

class Kept final : public LogitsSink {
 public:
  void on_logits(size_t item, int64_t token, std::span<float> logits) override {
    rows[{item, token}] = {logits.begin(), logits.end()};
  }
  void on_failure(size_t, const Status& status) override { CHECK(status.ok()); }

  Rows rows;
};

// One engine with its weights and caches; `on_disk`: all weights, most of the cache, half of the
// activations.
struct Stage {
  Stage(Device& device, const ModelShape& shape, LayerRange range, bool on_disk) : layers(range) {
    WeightStoreOptions stored;
    EngineOptions options;
    EngineScratch scratch;
    stored.layers = options.layers = range;
    options.sweep_tokens_max = 64;
    options.micro_batch_sequences = 2;
    options.kv_bytes = 1 << 20;
    if (on_disk) {
      const ModelFileTable table =
          plan_model_file(shape, Format::kF32, device.matrix_layout(Format::kF32));
      stored.placement = place_weights(table, table.weight_bytes(), 0, range);
      stored.transfers = scratch.transfers = &transfers;
      stored.scratch = test::memory_file(kFileBytes);
      const KvLayout kv = kv_layout(shape, Format::kF32);
      options.kv_bytes = kv.sequence_bytes(kPositions) * 2;
      options.kv_disk_bytes = kFileBytes;
      options.kv_staging_bytes = 3 * kv.sequence_bytes(64);
      options.activations_disk_share = 0.5;
      scratch.kv = test::memory_file(kFileBytes);
      scratch.activations = test::memory_file(kFileBytes);
    }
    weights = WeightStore::dummy(device, shape, Format::kF32, 3, std::move(stored)).value();
    engine = Engine::open(device, *weights, options, std::move(scratch)).value();
  }
  ~Stage() {
    for (auto& cache : caches) engine->release(std::move(cache));
  }

  const LayerRange layers;
  test::FakeIo io{{.seed = 1}};
  TransferQueue transfers{io, nullptr};
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Engine> engine;
  std::vector<std::unique_ptr<KvSequence>> caches;
};

// Logits of every token of some prompts, and of two steps after each, with layers cut before these.
Rows run(Device& device, const ModelShape& shape, std::vector<int64_t> cuts, bool on_disk,
         const KvBudget& budget) {
  const std::vector<int32_t> tokens = {7, 3, 9, 2, 11, 5, 8, 1, 12, 4, 6, 10, 13, 7, 2, 9};
  const std::vector<int64_t> lengths = {6, 1, 9, 4};
  cuts.push_back(shape.layers);
  std::vector<std::unique_ptr<Stage>> stages;
  for (int64_t first = 0; const int64_t end : cuts) {
    stages.push_back(
        std::make_unique<Stage>(device, shape, LayerRange{first, end - first}, on_disk));
    first = end;
  }
  for (const auto& stage : stages) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      stage->caches.push_back(stage->engine->reserve(kPositions, budget).value());
    }
  }
  Rows found;
  for (int64_t sweep = 0; sweep < 3; ++sweep) {
    std::vector<float> hidden;
    for (const auto& stage : stages) {
      std::vector<SweepItem> items;
      int64_t count = 0;
      for (size_t i = 0; i < lengths.size(); ++i) {
        const int64_t length = sweep == 0 ? lengths[i] : 1;
        items.push_back({.tokens = std::span(tokens).subspan(i, static_cast<size_t>(length)),
                         .position = sweep == 0 ? 0 : lengths[i] + sweep - 1,
                         .kv = stage->caches[i].get(),
                         .all_logits = sweep == 0 && i % 2 == 0});
        count += length;
      }
      const bool last = stage->layers.has_head(shape);
      std::vector<float> out(last ? 0 : static_cast<size_t>(count * shape.hidden));
      Kept sink;
      REQUIRE(stage->engine->run(items, sink, {.in = hidden, .out = out}).ok());
      CHECK(sink.rows.empty() != last);
      for (auto& [key, row] : sink.rows) {
        found[{key.first, 100 * sweep + key.second}] = std::move(row);
      }
      hidden = std::move(out);
    }
  }
  return found;
}

TEST_CASE("engines over ranges of layers give the bits of one over all of them") {
  const auto device = open_cpu_device(2).value();
  ModelShape shape = test::tiny_shape(kLayers);
  shape.norm_place = GENERATE(NormPlace::kPre, NormPlace::kPost);
  shape.final_norm = shape.norm_place == NormPlace::kPre;
  const KvBudget budget = GENERATE(KvBudget{}, KvBudget{2, 3, true});
  const Rows whole = run(*device, shape, {}, false, budget);
  REQUIRE(whole.size() == 6 + 1 + 9 + 1 + 2 * 4);
  for (const std::vector<int64_t>& cuts :
       std::vector<std::vector<int64_t>>{{}, {1}, {2}, {4}, {1, 3}, {1, 2, 3, 4}}) {
    for (const bool on_disk : {false, true}) {
      INFO(cuts.size() + 1 << " ranges" << (on_disk ? ", on disk" : ""));
      CHECK(run(*device, shape, cuts, on_disk, budget) == whole);
    }
  }
}

}  // namespace
}  // namespace spillway::layer_range_test
