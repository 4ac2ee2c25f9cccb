// Which slabs go to disk: as many bytes as asked for, evenly over the layers, matrices first, one
// piece of each.
#include "offload/weight_placement.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "offload/config_files.h"

namespace spillway::weight_placement_test {
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

// A placement by the definition, slab by slab.
class ByTheSlab {
 public:
  explicit ByTheSlab(const ModelFileTable& table, LayerRange layers)
      : table_(table), groups_(weight_groups(table)), tiers_(table.slabs.size(), Tier::kNone) {
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (has_group(layers, table.shape, groups_[i])) tiers_[i] = Tier::kDevice;
    }
    for (const TensorInfo& tensor : table.tensors) kinds_[tensor.first_slab] = &tensor;
  }

  WeightPlacement place(uint64_t disk, uint64_t host) {
    leave(Tier::kDisk, disk);
    leave(Tier::kHost, host);
    WeightPlacement placed;
    placed.tiers = tiers_;
    for (size_t i = 0; i < tiers_.size(); ++i) {
      if (tiers_[i] == Tier::kDevice) placed.memory_bytes += table_.slabs[i].bytes;
      if (tiers_[i] == Tier::kHost) placed.host_bytes += table_.slabs[i].bytes;
      if (tiers_[i] == Tier::kDisk) placed.disk_bytes += table_.slabs[i].bytes;
    }
    placed.from_disk = streamed([](Tier tier) { return tier == Tier::kDisk; });
    placed.to_device =
        streamed([](Tier tier) { return tier == Tier::kDisk || tier == Tier::kHost; });
    return placed;
  }

 private:
  // Matrices leave first; each in turn gives slabs from its end while half of the next one is still
  // within the share of the bytes passed.
  void leave(Tier tier, uint64_t target) {
    for (const bool matrices : {true, false}) {
      uint64_t all = 0;
      each(matrices, [&](size_t i) { all += table_.slabs[i].bytes; });
      if (all == 0 || target == 0) continue;
      const double share = std::min(1.0, static_cast<double>(target) / static_cast<double>(all));
      target -= std::min(target, all);
      double passed = 0, taken = 0;
      for (const auto& [first, tensor] : kinds_) {
        if ((tensor->spec.kind == WeightKind::kMatrix) != matrices) continue;
        std::vector<size_t> left;
        for (size_t i = first; i < first + tensor->slab_count; ++i) {
          if (tiers_[i] != Tier::kDevice) continue;
          left.push_back(i);
          passed += static_cast<double>(table_.slabs[i].bytes);
        }
        for (; !left.empty(); left.pop_back()) {
          const auto bytes = static_cast<double>(table_.slabs[left.back()].bytes);
          if (taken + bytes / 2 > share * passed) break;
          taken += bytes;
          tiers_[left.back()] = tier;
        }
      }
    }
  }

  template <class Visit>
  void each(bool matrices, const Visit& visit) const {
    for (const auto& [first, tensor] : kinds_) {
      if ((tensor->spec.kind == WeightKind::kMatrix) != matrices) continue;
      for (size_t i = first; i < first + tensor->slab_count; ++i) {
        if (tiers_[i] == Tier::kDevice) visit(i);
      }
    }
  }

  template <class Passes>
  StreamedBytes streamed(const Passes& passes) const {
    StreamedBytes sums;
    std::map<uint32_t, uint64_t> by_group;
    for (size_t i = 0; i < tiers_.size(); ++i) {
      if (!passes(tiers_[i])) continue;
      const uint64_t bytes = table_.slabs[i].bytes;
      sums.total += bytes;
      sums.slab_max = std::max(sums.slab_max, bytes);
      sums.group_max = std::max(sums.group_max, by_group[groups_[i]] += bytes);
    }
    return sums;
  }

  const ModelFileTable& table_;
  const std::vector<uint32_t> groups_;
  std::vector<Tier> tiers_;
  std::map<size_t, const TensorInfo*> kinds_;  // By first slab; the vectors of a layer share theirs
};

TEST_CASE("placements are those of the definition, slab by slab") {
  std::mt19937_64 random(7);
  for (const char* model : {"opt-125m", "opt-350m", "opt-1.3b", "opt-6.7b"}) {
    for (const Format format : {Format::kF32, Format::kQ4}) {
      const ModelFileTable table = table_of(model, format);
      const auto layers = all_layers(table.shape);
      for (const LayerRange range : {layers, LayerRange{0, 3}, LayerRange{3, layers.count - 3}}) {
        const WeightPlacer placer(table, range);
        for (int i = 0; i < 40; ++i) {
          const uint64_t all = placer.weight_bytes();
          const uint64_t disk = random() % 4 == 0 ? 0 : random() % (all + all / 8);
          const uint64_t host = random() % 4 == 0 ? 0 : random() % (all + all / 8);
          INFO(model << ", layers from " << range.first << ", " << disk << " and " << host);
          const WeightPlacement expected = ByTheSlab(table, range).place(disk, host);
          const WeightPlacement placed = placer.place(disk, host);
          const WeightPlacement sums = placer.sums(disk, host);
          CHECK(placed.tiers == expected.tiers);
          CHECK(sums.tiers.empty());
          for (const WeightPlacement& found : {placed, sums}) {
            CHECK(found.memory_bytes == expected.memory_bytes);
            CHECK(found.host_bytes == expected.host_bytes);
            CHECK(found.disk_bytes == expected.disk_bytes);
            const auto same = [](const StreamedBytes& a, const StreamedBytes& b) {
              return a.total == b.total && a.group_max == b.group_max && a.slab_max == b.slab_max;
            };
            CHECK(same(found.from_disk, expected.from_disk));
            CHECK(same(found.to_device, expected.to_device));
          }
        }
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
}  // namespace spillway::weight_placement_test
