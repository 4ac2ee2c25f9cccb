#include "offload/kv_layer.h"

#include <catch2/catch.hpp>

#include "kernels/kv_state.h"
#include "tests/support/tiny_shape.h"

namespace spillway::kv_layer_test {
namespace {

const KvLayout kLayout{2, 8, Format::kF16};

TEST_CASE("a layer takes its rows in blocks, and its state in front of them") {
  const KvLayer full = kv_layer(kLayout, 0, 100, {}, {});
  CHECK(full.in_blocks());
  CHECK(full.state_bytes == 0);
  CHECK(full.memory_bytes == kLayout.sequence_bytes(100));
  CHECK(full.disk_bytes == round_up(full.memory_bytes, kIoAlignment));

  const KvBudget h2o{10, 12, true};
  const KvLayer limited = kv_layer(kLayout, 0, 100, h2o, {});
  CHECK_FALSE(limited.in_blocks());
  CHECK(limited.state_bytes == KvStateLayout{2, h2o}.bytes());
  CHECK(limited.memory_bytes == limited.state_bytes + kLayout.sequence_bytes(23));
  CHECK(limited.disk_bytes == limited.disk_state_bytes() + kIoAlignment);
  CHECK(limited.staged_bytes() == limited.disk_bytes);

  // In chunks it has all rows of its prompt, and their scores, until that ends.
  const KvLayer chunked = kv_layer(kLayout, 0, 100, h2o, {80, 32});
  CHECK(chunked.memory_bytes ==
        KvStateLayout{2, h2o}.chunked_bytes(80) + kLayout.sequence_bytes(80));
}

TEST_CASE("staging has room for a layer in runs, which do not go around a ring's end") {
  const KvLayer small = kv_layer(kLayout, 0, 5000, {}, {});
  CHECK(small.staged_bytes() == small.disk_bytes + round_up(small.disk_bytes / 2, kIoAlignment));
  const KvLayer large = kv_layer(kLayout, 0, 500000, {}, {});
  CHECK(large.staged_bytes() == large.disk_bytes + kKvDiskRunBytesMax);
}

TEST_CASE("the layers of a model add up, those with a window by what it holds") {
  ModelShape shape = test::tiny_shape(4);
  const KvLayout layout = kv_layout(shape, Format::kF32);
  const KvLayersBytes plain = kv_layers_bytes(shape, Format::kF32, 60, {}, {}, all_layers(shape));
  CHECK(plain.memory == 4 * layout.sequence_bytes(60));
  CHECK(plain.largest_on_disk == round_up(layout.sequence_bytes(60), kIoAlignment));
  shape.sliding_window = 9;
  shape.sliding_layers = {1, 0, 0, 1};
  const KvLayersBytes mixed = kv_layers_bytes(shape, Format::kF32, 60, {}, {}, all_layers(shape));
  const uint64_t windowed = kv_layer(layout, 9, 60, {}, {}).memory_bytes;
  CHECK(windowed < layout.sequence_bytes(60));
  CHECK(mixed.memory == 2 * layout.sequence_bytes(60) + 2 * windowed);
  CHECK(mixed.largest_on_disk == plain.largest_on_disk);
}

}  // namespace
}  // namespace spillway::kv_layer_test
