// A matrix whose rows are on several tiers is one product a tier, not one a slab: many thin ones
// leave most of a large device idle.
#include <catch2/catch.hpp>
#include <set>

#include "kernels/ops.h"
#include "offload/weight_store.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/fake_io.h"
#include "tests/support/test_devices.h"
#include "tests/support/tiny_shape.h"

namespace spillway::matrix_pieces_test {
namespace {

// The MLP's matrices have four slabs each.
ModelShape wide_shape() {
  ModelShape shape = test::tiny_shape(1);
  shape.hidden = shape.embedding = 256;
  shape.head_size = 128;
  shape.mlp = int64_t{32} << 10;
  return shape;
}

ModelFileTable table_of(const Device& device) {
  return plan_model_file(wide_shape(), Format::kF32, device.matrix_layout(Format::kF32));
}

struct Product {
  std::vector<float> out;
  uint64_t count = 0;  // Of cuBLASLt's
};

// One row times each of the layer's matrices, sweep by sweep.
std::vector<Product> products_of(Device& device, WeightStore& store, int sweeps) {
  const auto stream = device.new_stream("compute");
  store.attach(*stream);
  std::vector<Product> products;
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    REQUIRE(store.acquire_embedding().ok());
    store.release_embedding();
    const LayerWeights& weights = *store.acquire(0).value();
    for (const WeightRole role : {WeightRole::kQkvWeight, WeightRole::kAttentionOutWeight,
                                  WeightRole::kMlpUpWeight, WeightRole::kMlpDownWeight}) {
      const WeightMatrix* matrix = &weights.matrix(role);
      const test::DeviceArray<float> in(
          device, *stream, std::vector<float>(static_cast<size_t>(matrix->columns), 0.5f));
      const test::DeviceArray<float> out(device, *stream,
                                         std::vector<float>(static_cast<size_t>(matrix->rows)));
      const uint64_t before = fake_cudart::fused_products();
      linear(*stream, {.in = in.matrix(1, matrix->columns),
                       .weight = *matrix,
                       .out = out.matrix(1, matrix->rows)});
      const uint64_t count = fake_cudart::fused_products() - before;
      products.push_back({out.read(), count});
    }
    store.release(0);
    REQUIRE(store.acquire_head().ok());
    store.release_head();
  }
  REQUIRE(stream->record().wait().ok());
  store.detach();
  return products;
}

// Of the layer's matrices, in the order of products_of(): on how many tiers each is.
std::vector<size_t> tiers_of(const ModelFileTable& table, const WeightPlacement& placement) {
  std::vector<size_t> tiers;
  for (const WeightRole role : {WeightRole::kQkvWeight, WeightRole::kAttentionOutWeight,
                                WeightRole::kMlpUpWeight, WeightRole::kMlpDownWeight}) {
    for (const TensorInfo& tensor : table.tensors) {
      if (tensor.spec.role != role) continue;
      const auto first = placement.tiers.begin() + tensor.first_slab;
      tiers.push_back(std::set<Tier>(first, first + tensor.slab_count).size());
    }
  }
  return tiers;
}

TEST_CASE("a matrix on several tiers is one product a tier, with the same result") {
  const auto device = open_cuda_device(0).value();
  const ModelFileTable table = table_of(*device);
  const uint64_t all = table.weight_bytes();
  const auto resident = WeightStore::dummy(*device, wide_shape(), Format::kF32, 3, {}).value();
  const std::vector<Product> expected = products_of(*device, *resident, 1);
  for (const Product& product : expected) CHECK(product.count == 1);
  size_t split = 0;
  for (const auto& [host, disk] : {std::pair{80, 0}, {50, 0}, {0, 50}, {50, 25}}) {
    INFO(host << " % on the host, " << disk << " % on disk");
    test::FakeIo io({.seed = 1});
    TransferQueue transfers(io, nullptr);
    WeightStoreOptions options;
    options.placement = place_weights(table, all / 100 * static_cast<uint64_t>(disk),
                                      all / 100 * static_cast<uint64_t>(host));
    options.transfers = &transfers;
    options.scratch = test::memory_file(options.placement.disk_bytes + 1);
    const std::vector<size_t> tiers = tiers_of(table, options.placement);
    const auto store =
        WeightStore::dummy(*device, wide_shape(), Format::kF32, 3, std::move(options)).value();
    const std::vector<Product> products = products_of(*device, *store, 2);
    for (size_t i = 0; i < products.size(); ++i) {
      const size_t matrix = i % expected.size();
      INFO("matrix " << matrix);
      CHECK(products[i].out == expected[matrix].out);
      // The ring that streamed ones pass through ends somewhere; not in the first sweep.
      CHECK(products[i].count <= tiers[matrix] + (i < expected.size() ? 0 : 1));
      split += tiers[matrix] > 1 ? 1 : 0;
    }
  }
  CHECK(split >= 8);
}

}  // namespace
}  // namespace spillway::matrix_pieces_test
