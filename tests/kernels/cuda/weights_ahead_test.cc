// Weights that live in host memory or on disk are on their way to the device before they are asked
// for: while the CPU attends in a layer, the link brings the next one.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <catch2/catch.hpp>
#include <random>

#include "kernels/base/clock.h"
#include "scheduler/engine/engine.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/fake_io.h"
#include "tests/support/recording_trace.h"
#include "tests/support/tiny_shape.h"

namespace spillway::weights_ahead_test {
namespace {

constexpr int64_t kLayers = 4;

ModelFileTable table_of(const Device& device) {
  return plan_model_file(test::tiny_shape(kLayers), Format::kF32,
                         device.matrix_layout(Format::kF32));
}

std::unique_ptr<WeightStore> dummy(Device& device, WeightStoreOptions options) {
  return WeightStore::dummy(device, test::tiny_shape(kLayers), Format::kF32, 3, std::move(options))
      .value();
}

// There when the stream's work is done.
std::vector<std::byte> bytes_of(Stream& stream, const WeightMatrix& matrix) {
  const auto slab_bytes = [&](const WeightSlab& slab) {
    return packed_bytes(matrix.layout, matrix.format, slab.rows, matrix.columns);
  };
  size_t bytes = 0, at = 0;
  for (const WeightSlab& slab : matrix.slabs) bytes += slab_bytes(slab);
  std::vector<std::byte> all(bytes);
  for (const WeightSlab& slab : matrix.slabs) {
    stream.copy(all.data() + at, slab.data, slab_bytes(slab));
    at += slab_bytes(slab);
  }
  return all;
}

// What work on the compute stream sees of every matrix, in `sweeps` sweeps. Now and then it asks
// for more of the next group.
std::vector<std::vector<std::byte>> seen_in(Device& device, WeightStore& store, int sweeps) {
  std::vector<std::vector<std::byte>> seen;
  std::mt19937_64 random(17);
  const auto stream = device.new_stream("compute");
  store.attach(*stream);
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    seen.push_back(
        bytes_of(*stream, store.acquire_embedding().value()->matrix(WeightRole::kTokenEmbedding)));
    store.release_embedding();
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const LayerWeights& weights = *store.acquire(layer).value();
      for (const WeightRole role : {WeightRole::kQkvWeight, WeightRole::kAttentionOutWeight,
                                    WeightRole::kMlpUpWeight, WeightRole::kMlpDownWeight}) {
        seen.push_back(bytes_of(*stream, weights.matrix(role)));
        if (random() % 2 == 0) store.upload_ahead();
      }
      store.release(layer);
    }
    seen.push_back(bytes_of(*stream, store.acquire_head().value()->matrix(WeightRole::kHead)));
    store.release_head();
  }
  REQUIRE(stream->record().wait().ok());
  store.detach();
  return seen;
}

TEST_CASE("weights brought ahead are the right ones, whatever the ring holds and the disk brings") {
  const auto device = open_cuda_device(0).value();
  const ModelFileTable table = table_of(*device);
  const uint64_t all = table.weight_bytes();
  const auto resident = dummy(*device, {});
  const auto expected = seen_in(*device, *resident, 3);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    fake_cudart::set_seed(seed);
    test::FakeIo io({.seed = seed});
    TransferQueue transfers(io, nullptr);
    WeightStoreOptions options;
    const uint64_t disk = seed % 2 == 0 ? 0 : random() % all;
    options.placement = place_weights(table, disk, random() % (all - disk) + 1);
    const StreamedBytes& passing = options.placement.to_device;
    if (passing.total == 0) continue;
    const uint64_t slack = passing.ring_good() + passing.group_max - passing.ring_min();
    options.device_ring_bytes = passing.ring_min() + random() % (slack + 1);
    options.transfers = &transfers;
    options.scratch = test::memory_file(uint64_t{4} << 20);
    options.prefetch = seed % 5 != 0;
    const auto store = dummy(*device, std::move(options));
    CHECK(seen_in(*device, *store, 3) == expected);
    CHECK(store->h2d_bytes() == 3 * store->placement().to_device.total);
    // Another engine begins anew.
    CHECK(seen_in(*device, *store, 3) == expected);
  }
}

// Asks for more of the next group until so much was queued for the device, or for 20 seconds.
bool comes(WeightStore& store, uint64_t queued) {
  const double deadline = steady_seconds() + 20;
  while (fake_cudart::bytes_to_device_queued() < queued && steady_seconds() < deadline) {
    store.upload_ahead();
  }
  return fake_cudart::bytes_to_device_queued() >= queued;
}

TEST_CASE("while a group is in use the next one comes from disk to the device") {
  const auto device = open_cuda_device(0).value();
  const ModelFileTable table = table_of(*device);
  const std::vector<uint32_t> groups = weight_groups(table);
  std::vector<uint64_t> group_bytes(groups.back() + 1);
  for (size_t i = 0; i < groups.size(); ++i) group_bytes[groups[i]] += table.slabs[i].bytes;
  const auto resident = dummy(*device, {});
  const auto expected = seen_in(*device, *resident, 1);

  // Room in host memory for little more than a group: it must be let go of when it was copied.
  const bool tight = GENERATE(false, true);
  INFO("tight " << tight);
  test::FakeIo io({.seed = 5});
  TransferQueue transfers(io, nullptr);
  WeightStoreOptions options;
  options.placement = place_weights(table, table.weight_bytes());
  REQUIRE(options.placement.disk_bytes == table.weight_bytes());
  options.device_ring_bytes = 2 * options.placement.to_device.ring_good();
  options.ring_bytes = tight ? options.placement.ring_bytes_min() : 2 * table.weight_bytes();
  options.transfers = &transfers;
  options.scratch = test::memory_file(uint64_t{4} << 20);
  const auto store = dummy(*device, std::move(options));
  CHECK(seen_in(*device, *store, 1) == expected);

  const auto stream = device->new_stream("compute");
  store->attach(*stream);
  uint64_t queued = fake_cudart::bytes_to_device_queued();
  const auto tokens =
      bytes_of(*stream, store->acquire_embedding().value()->matrix(WeightRole::kTokenEmbedding));
  queued += group_bytes[0] + group_bytes[1];
  CHECK(comes(*store, queued));
  store->release_embedding();
  // Of what is ahead nothing is sent twice, and the disk waits for nobody.
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    REQUIRE(store->acquire(layer).ok());
    queued += group_bytes[static_cast<size_t>(layer) + 2];
    CHECK(comes(*store, queued));
    CHECK(fake_cudart::bytes_to_device_queued() == queued);
    store->release(layer);
  }
  REQUIRE(store->acquire_head().ok());
  store->release_head();
  REQUIRE(stream->record().wait().ok());
  CHECK(tokens == expected.front());
  store->detach();
}

// What was queued for the device when the CPU had attended, layer by layer.
class AttentionWatch final : public test::RecordingTrace {
 public:
  void span(Track track, const char* name, double start, double end, const char* value_name,
            int64_t value) override {
    RecordingTrace::span(track, name, start, end, value_name == nullptr ? "" : value_name, value);
    if (tracks[static_cast<size_t>(track)] == "host attention") {
      queued.push_back(fake_cudart::bytes_to_device_queued());
    }
  }
  std::vector<uint64_t> queued;
};

class NoLogits final : public LogitsSink {
 public:
  void on_logits(size_t, int64_t, std::span<float>) override {}
  void on_failure(size_t, const Status& status) override { CHECK(status.ok()); }
};

struct Watched {
  std::vector<uint64_t> queued;  // Since the prompt's sweep began, by layer of the step
  uint64_t weights = 0, embedding = 0, layer = 0;
};

// A prompt and one step, all weights and the whole cache in host memory.
Watched watch(bool overlap) {
  const auto device = open_cuda_device(0).value();
  const auto host = open_cpu_device(1).value();
  const ModelFileTable table = table_of(*device);
  AttentionWatch trace;
  host->set_trace(&trace);
  WeightStoreOptions stored;
  stored.placement = place_weights(table, 0, table.weight_bytes());
  stored.prefetch = overlap;
  Watched found;
  found.weights = stored.placement.to_device.total;
  const std::vector<uint32_t> groups = weight_groups(table);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i] == 0) found.embedding += table.slabs[i].bytes;
    if (groups[i] == 1) found.layer += table.slabs[i].bytes;
  }
  const auto weights = dummy(*device, std::move(stored));
  EngineOptions options;
  const uint64_t sequence = kv_layout(weights->shape(), Format::kF32).sequence_bytes(32);
  options.kv_host_bytes = 2 * kLayers * sequence;
  options.kv_ring_bytes = 2 * round_up(sequence, kIoAlignment);
  options.sweep_tokens_max = 32;
  options.host_attention = true;
  options.host = host.get();
  options.overlap = overlap;
  const auto engine = Engine::open(*device, *weights, options).value();
  auto cache = engine->reserve(32).value();
  NoLogits sink;
  const uint64_t before = fake_cudart::bytes_to_device_queued();
  std::vector<int32_t> tokens = {3, 4, 5, 6};
  SweepItem item{.tokens = tokens, .kv = cache.get()};
  REQUIRE(engine->run(std::span(&item, 1), sink).ok());
  item.position = 4;
  item.tokens = std::span(tokens).first(1);
  REQUIRE(engine->run(std::span(&item, 1), sink).ok());
  engine->release(std::move(cache));
  for (const uint64_t queued : trace.queued) found.queued.push_back(queued - before);
  return found;
}

TEST_CASE("the next layer's weights are queued while the CPU attends") {
  const Watched with = watch(true), without = watch(false);
  REQUIRE(with.queued.size() == kLayers);
  REQUIRE(without.queued.size() == kLayers);
  for (uint64_t layer = 0; layer + 1 < kLayers; ++layer) {
    INFO("layer " << layer);
    // Of the prompt's sweep, and of the step's up to this layer and to the next.
    const uint64_t here = with.weights + with.embedding + (layer + 1) * with.layer;
    CHECK(with.queued[layer] >= here + with.layer);
    CHECK(without.queued[layer] >= here);
    CHECK(without.queued[layer] < here + with.layer);
  }
}

}  // namespace
}  // namespace spillway::weights_ahead_test
