// Which slabs go to disk: as many bytes as asked for, evenly over the layers, matrices first.
#include "offload/weight_placement.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "offload/model_catalog.h"

namespace spillway {
namespace {

ModelFileTable table_of(const char* model, DType format = DType::kBF16) {
  return plan_model_file(find_model_shape(model).value(), format, MatrixLayout::kPanels16);
}

TEST_CASE("the share on disk is what was asked for, to within one slab") {
  for (const char* model : {"opt-125m", "opt-1.3b", "opt-6.7b"}) {
    const ModelFileTable table = table_of(model);
    const uint64_t all = table.weight_bytes();
    for (int percent = 0; percent <= 100; ++percent) {
      INFO(model << ", " << percent << " %");
      const uint64_t target = all / 100 * static_cast<uint64_t>(percent);
      const WeightPlacement placed = place_weights(table, percent == 100 ? all : target);
      CHECK(placed.disk_bytes + placed.memory_bytes == all);
      const double off = std::abs(static_cast<double>(placed.disk_bytes) -
                                  static_cast<double>(percent == 100 ? all : target));
      CHECK(off <= static_cast<double>(kSlabBytesMax));
      if (percent == 0) CHECK(placed.disk_bytes == 0);
      if (percent == 100) CHECK(placed.memory_bytes == 0);
    }
  }
}

TEST_CASE("every layer has its share on disk, and tables stay until nothing else is left") {
  const ModelFileTable table = table_of("opt-6.7b");
  const WeightPlacement placed = place_weights(table, table.weight_bytes() / 2);
  const std::vector<uint32_t> groups = weight_groups(table);
  std::vector<double> disk(static_cast<size_t>(table.shape.layers) + 2);
  std::vector<double> all(disk.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    all[groups[i]] += static_cast<double>(table.slabs[i].bytes);
    if (placed.on_disk(i)) disk[groups[i]] += static_cast<double>(table.slabs[i].bytes);
  }
  CHECK(disk[0] == 0);  // The embeddings: a sweep needs a few of their rows.
  const double share = disk[1] / all[1];
  for (size_t group = 1; group < disk.size(); ++group) {
    INFO("group " << group);
    CHECK(std::abs(disk[group] - share * all[group]) <= 2.0 * kSlabBytesMax);
  }
}

TEST_CASE("groups are the embeddings, the layers in order, the head") {
  const ModelFileTable table = table_of("opt-125m");
  const std::vector<uint32_t> groups = weight_groups(table);
  CHECK(groups.front() == 0);
  CHECK(groups.back() == static_cast<uint32_t>(table.shape.layers) + 1);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (table.slabs[i].layer >= 0) {
      CHECK(groups[i] == 1 + static_cast<uint32_t>(table.slabs[i].layer));
    }
    if (i > 0) CHECK(groups[i] >= groups[i - 1]);
  }
}

}  // namespace
}  // namespace spillway
