// Which slabs go to disk: as many bytes as asked for, evenly over the layers, matrices first, one
// piece of each.
#include "offload/weight_placement.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <utility>

#include "offload/config_files.h"

namespace spillway {
namespace {

ModelFileTable table_of(const char* model, Format format = Format::kBF16) {
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

TEST_CASE("a tier has one piece of a matrix, and its share of all of them") {
  for (const char* model : {"opt-1.3b", "opt-6.7b", "opt-30b"}) {
    const ModelFileTable table = table_of(model, Format::kF16);
    const uint64_t all = table.weight_bytes();
    for (const auto& [host, disk] :
         {std::pair{0, 0}, {80, 0}, {0, 80}, {50, 30}, {3, 5}, {30, 70}, {95, 4}, {100, 0}}) {
      INFO(model << ", " << host << " % host, " << disk << " % disk");
      const uint64_t on_host = all / 100 * static_cast<uint64_t>(host);
      const uint64_t on_disk = all / 100 * static_cast<uint64_t>(disk);
      const WeightPlacement placed = place_weights(table, on_disk, on_host);
      const auto off = [](uint64_t a, uint64_t b) { return a > b ? a - b : b - a; };
      CHECK(off(placed.host_bytes, on_host) <= kSlabBytesMax);
      CHECK(off(placed.disk_bytes, on_disk) <= kSlabBytesMax);
      CHECK(placed.memory_bytes + placed.host_bytes + placed.disk_bytes == all);
      for (const TensorInfo& tensor : table.tensors) {
        const auto first = placed.tiers.begin() + tensor.first_slab;
        // kDevice, then kHost, then kDisk.
        CHECK(std::is_sorted(first, first + tensor.slab_count));
      }
    }
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

TEST_CASE("ranges of layers have all slabs between them, none of them twice") {
  const ModelFileTable table = table_of("opt-1.3b", Format::kF16);
  const std::vector<uint32_t> groups = weight_groups(table);
  std::vector<int> held(table.slabs.size());
  uint64_t bytes = 0;
  for (const LayerRange layers : {LayerRange{0, 5}, LayerRange{5, 1}, LayerRange{6, 18}}) {
    INFO(layers.count << " layers from " << layers.first);
    const WeightPlacement memory = place_weights(table, 0, 0, layers);
    const uint64_t all = memory.memory_bytes;
    bytes += all;
    const WeightPlacement placed = place_weights(table, all / 4, all / 2, layers);
    const auto off = [](uint64_t a, uint64_t b) { return a > b ? a - b : b - a; };
    CHECK(off(placed.disk_bytes, all / 4) <= kSlabBytesMax);
    CHECK(off(placed.host_bytes, all / 2) <= kSlabBytesMax);
    CHECK(placed.memory_bytes + placed.host_bytes + placed.disk_bytes == all);
    for (size_t i = 0; i < groups.size(); ++i) {
      const bool here = has_group(layers, table.shape, groups[i]);
      held[i] += here ? 1 : 0;
      CHECK((placed.tiers[i] != Tier::kNone) == here);
    }
  }
  CHECK(bytes == table.weight_bytes());
  CHECK(std::count(held.begin(), held.end(), 1) == static_cast<std::ptrdiff_t>(held.size()));
}

}  // namespace
}  // namespace spillway
