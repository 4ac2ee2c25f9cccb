#include "offload/weight_placement.h"

#include <algorithm>

#include "offload/staging_ring.h"

namespace spillway {

namespace {

// Gives `tier` `target` of the `all` bytes of the slabs with kind[slab] == wanted that are still on
// the device, spread evenly over their order. What it has left there.
uint64_t spread(const ModelFileTable& table, const std::vector<uint8_t>& matrix, bool wanted,
                Tier tier, uint64_t target, uint64_t all, WeightPlacement* placement) {
  if (target == 0 || all == 0) return all;
  const double share = std::min(1.0, static_cast<double>(target) / static_cast<double>(all));
  double passed = 0, taken = 0;
  uint64_t left = all;
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    if ((matrix[i] != 0) != wanted || placement->tiers[i] != Tier::kDevice) continue;
    const auto bytes = static_cast<double>(table.slabs[i].bytes);
    passed += bytes;
    if (taken + bytes / 2 > share * passed) continue;
    taken += bytes;
    placement->tiers[i] = tier;
    left -= table.slabs[i].bytes;
  }
  return left;
}

// Adds up the slabs that pass through a ring, in order.
class Streamed {
 public:
  explicit Streamed(StreamedBytes* sum) : sum_(*sum) {}
  void add(uint32_t group, uint64_t bytes) {
    if (group != group_) group_bytes_ = 0;
    group_ = group;
    group_bytes_ += bytes;
    sum_.total += bytes;
    sum_.slab_max = std::max(sum_.slab_max, bytes);
    sum_.group_max = std::max(sum_.group_max, group_bytes_);
  }

 private:
  StreamedBytes& sum_;
  uint32_t group_ = 0;
  uint64_t group_bytes_ = 0;
};

}  // namespace

uint64_t StreamedBytes::ring_min() const {
  return total == 0 ? 0 : StagingRing::bytes_for(group_max, slab_max);
}

uint64_t StreamedBytes::ring_good() const {
  return total == 0 ? 0 : StagingRing::bytes_for(std::min(2 * group_max, total), slab_max);
}

std::vector<uint32_t> weight_groups(const ModelFileTable& table) {
  std::vector<uint32_t> groups(table.slabs.size());
  const auto layers = static_cast<uint32_t>(table.shape.layers);
  uint32_t group = 0;
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    const int64_t layer = table.slabs[i].layer;
    if (layer >= 0) {
      group = 1 + static_cast<uint32_t>(layer);
    } else if (group > 0) {
      group = layers + 1;
    }
    groups[i] = group;
  }
  return groups;
}

// The search of a plan asks for thousands of these.
WeightPlacement place_weights(const ModelFileTable& table, uint64_t disk_bytes,
                              uint64_t host_bytes) {
  WeightPlacement placement;
  placement.tiers.resize(table.slabs.size(), Tier::kDevice);
  std::vector<uint8_t> matrix(table.slabs.size());
  uint64_t matrices = 0, others = table.weight_bytes();
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.spec.kind != WeightKind::kMatrix) continue;
    for (uint32_t i = 0; i < tensor.slab_count; ++i) {
      matrix[tensor.first_slab + i] = 1;
      matrices += table.slabs[tensor.first_slab + i].bytes;
    }
  }
  others -= matrices;
  const auto leave = [&](Tier tier, uint64_t bytes) {
    const uint64_t rest = bytes - std::min(bytes, matrices);
    matrices = spread(table, matrix, true, tier, bytes, matrices, &placement);
    others = spread(table, matrix, false, tier, rest, others, &placement);
  };
  leave(Tier::kDisk, disk_bytes);
  leave(Tier::kHost, host_bytes);
  const std::vector<uint32_t> groups = weight_groups(table);
  Streamed from_disk(&placement.from_disk), to_device(&placement.to_device);
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    const Tier tier = placement.tiers[i];
    const uint64_t bytes = table.slabs[i].bytes;
    (tier == Tier::kDevice ? placement.memory_bytes
     : tier == Tier::kHost ? placement.host_bytes
                           : placement.disk_bytes) += bytes;
    if (tier == Tier::kDisk) from_disk.add(groups[i], bytes);
    if (tier != Tier::kDevice) to_device.add(groups[i], bytes);
  }
  return placement;
}

}  // namespace spillway
