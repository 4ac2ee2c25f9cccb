// How often the host waits for the device in a sweep whose weights and cache are there: once, for
// what it asked for, while there is room for that. Layers and head are queued without one.
#include <catch2/catch.hpp>

#include "scheduler/engine/engine.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/tiny_shape.h"

namespace spillway::engine_waits_test {
namespace {

class Counted final : public LogitsSink {
 public:
  void on_logits(size_t, int64_t, std::span<float>) override { ++rows; }
  void on_sampled(size_t, int64_t, int32_t) override { ++rows; }
  void on_failure(size_t, const Status& status) override { CHECK(status.ok()); }

  int rows = 0;
};

TEST_CASE("a sweep waits for the device once, however it ends") {
  const ModelShape shape = test::tiny_shape(3);
  const auto device = open_cuda_device(0).value();
  const auto weights = WeightStore::dummy(*device, shape, Format::kBF16, 3, {}).value();
  EngineOptions options;
  options.kv_bytes = kv_layout(shape, Format::kBF16).sequence_bytes(32) * 3 * 4;
  options.sweep_tokens_max = 64;
  options.micro_batch_sequences = 1;
  const auto engine = Engine::open(*device, *weights, options).value();
  const std::vector<int32_t> tokens(5, 7);
  std::vector<std::unique_ptr<KvSequence>> caches;
  for (int i = 0; i < 2; ++i) caches.push_back(engine->reserve(32).value());
  int64_t position = 0;
  const auto sweep = [&](const SweepItem& kind) {
    std::vector<SweepItem> items;
    for (const auto& cache : caches) {
      SweepItem item = kind;
      item.tokens = std::span(tokens).first(position == 0 ? 5 : 1);
      item.position = position;
      item.kv = cache.get();
      items.push_back(item);
    }
    position += position == 0 ? 5 : 1;
    Counted sink;
    const uint64_t before = fake_cudart::waits();
    REQUIRE(engine->run(items, sink).ok());
    CHECK(sink.rows == (kind.no_logits ? 0 : 2));
    return fake_cudart::waits() - before;
  };
  sweep({});  // Scratch grows.
  CHECK(sweep({}) == 1);
  SweepItem sampled, silent;
  sampled.sample.count = 1;
  CHECK(sweep(sampled) == 1);
  // Who asks for nothing hears of errors all the same.
  silent.no_logits = true;
  CHECK(sweep(silent) == 1);
  for (auto& cache : caches) engine->release(std::move(cache));
}

TEST_CASE("a sweep of many sequences waits once for all that is drawn, and for whole rows in turn",
          "[slow]") {
  constexpr size_t kSequences = 300;
  const ModelShape shape = test::tiny_shape(1);
  const auto device = open_cuda_device(0).value();
  const auto weights = WeightStore::dummy(*device, shape, Format::kBF16, 3, {}).value();
  EngineOptions options;
  options.kv_bytes = kv_layout(shape, Format::kF32).sequence_bytes(2) * 2 * kSequences;
  options.sweep_tokens_max = kSequences;
  const auto engine = Engine::open(*device, *weights, options).value();
  const int32_t token = 7;
  // So many sequences, each `whole`-th of which wants its row whole; 0: none.
  const auto sweep = [&](size_t sequences, size_t whole) {
    std::vector<std::unique_ptr<KvSequence>> caches;
    std::vector<SweepItem> items;
    for (size_t i = 0; i < sequences; ++i) {
      caches.push_back(engine->reserve(2).value());
      SweepItem item{.tokens = std::span(&token, 1), .kv = caches.back().get()};
      item.sample.count = whole > 0 && i % whole == 0 ? 0 : 100;
      items.push_back(item);
    }
    Counted sink;
    const uint64_t before = fake_cudart::waits();
    REQUIRE(engine->run(items, sink).ok());
    const uint64_t waits = fake_cudart::waits() - before;
    CHECK(sink.rows == static_cast<int>(sequences));
    for (auto& cache : caches) engine->release(std::move(cache));
    return waits;
  };
  sweep(kSequences, 0);  // Scratch grows.
  CHECK(sweep(65, 0) == 1);
  CHECK(sweep(150, 0) == 1);
  CHECK(sweep(256, 0) == 1);
  CHECK(sweep(300, 0) == 2);  // As many as it has room for, and the rest
  CHECK(sweep(150, 3) == 1);  // Fifty whole ones
  CHECK(sweep(150, 1) == 3);
}

}  // namespace
}  // namespace spillway::engine_waits_test
