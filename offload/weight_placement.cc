#include "offload/weight_placement.h"

#include <algorithm>

#include "offload/staging_ring.h"

namespace spillway {

namespace {

// Gives `tier` `target` bytes of the slabs with kind[slab] == wanted that are still on the device,
// spread evenly over their order.
void spread(const ModelFileTable& table, const std::vector<bool>& matrix, bool wanted, Tier tier,
            uint64_t target, WeightPlacement* placement) {
  const auto candidate = [&](size_t i) {
    return matrix[i] == wanted && placement->tiers[i] == Tier::kDevice;
  };
  uint64_t all = 0;
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    if (candidate(i)) all += table.slabs[i].bytes;
  }
  if (all == 0) return;
  const double share = std::min(1.0, static_cast<double>(target) / static_cast<double>(all));
  double passed = 0, taken = 0;
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    if (!candidate(i)) continue;
    const auto bytes = static_cast<double>(table.slabs[i].bytes);
    passed += bytes;
    if (taken + bytes / 2 > share * passed) continue;
    taken += bytes;
    placement->tiers[i] = tier;
  }
}

// Those of the slabs that `passes` names.
template <class Passes>
StreamedBytes streamed_bytes(const ModelFileTable& table, const Passes& passes) {
  StreamedBytes streamed;
  const std::vector<uint32_t> groups = weight_groups(table);
  std::vector<uint64_t> group_bytes(static_cast<size_t>(table.shape.layers) + 2);
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    if (!passes(i)) continue;
    const uint64_t bytes = table.slabs[i].bytes;
    streamed.total += bytes;
    streamed.slab_max = std::max(streamed.slab_max, bytes);
    group_bytes[groups[i]] += bytes;
  }
  streamed.group_max = *std::max_element(group_bytes.begin(), group_bytes.end());
  return streamed;
}

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

WeightPlacement place_weights(const ModelFileTable& table, uint64_t disk_bytes,
                              uint64_t host_bytes) {
  WeightPlacement placement;
  placement.tiers.resize(table.slabs.size(), Tier::kDevice);
  std::vector<bool> matrix(table.slabs.size());
  uint64_t matrix_bytes = 0;
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.spec.kind != WeightKind::kMatrix) continue;
    for (uint32_t i = 0; i < tensor.slab_count; ++i) {
      matrix[tensor.first_slab + i] = true;
      matrix_bytes += table.slabs[tensor.first_slab + i].bytes;
    }
  }
  const auto leave = [&](Tier tier, uint64_t bytes, uint64_t matrices) {
    if (bytes == 0) return;
    spread(table, matrix, true, tier, bytes, &placement);
    if (bytes > matrices) spread(table, matrix, false, tier, bytes - matrices, &placement);
  };
  leave(Tier::kDisk, disk_bytes, matrix_bytes);
  leave(Tier::kHost, host_bytes, matrix_bytes - std::min(matrix_bytes, disk_bytes));
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    const Tier tier = placement.tiers[i];
    uint64_t& bytes = tier == Tier::kDevice ? placement.memory_bytes
                      : tier == Tier::kHost ? placement.host_bytes
                                            : placement.disk_bytes;
    bytes += table.slabs[i].bytes;
  }
  placement.from_disk = streamed_bytes(table, [&](size_t i) { return placement.on_disk(i); });
  placement.to_device =
      streamed_bytes(table, [&](size_t i) { return placement.tiers[i] != Tier::kDevice; });
  return placement;
}

}  // namespace spillway
