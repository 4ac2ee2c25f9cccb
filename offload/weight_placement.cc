#include "offload/weight_placement.h"

#include <algorithm>

#include "offload/staging_ring.h"

namespace spillway {

namespace {

// Takes `target` bytes of the slabs with kind[slab] == wanted, spread evenly over their order.
void spread(const ModelFileTable& table, const std::vector<bool>& matrix, bool wanted,
            uint64_t target, WeightPlacement* placement) {
  uint64_t all = 0;
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    if (matrix[i] == wanted) all += table.slabs[i].bytes;
  }
  if (all == 0) return;
  const double share = std::min(1.0, static_cast<double>(target) / static_cast<double>(all));
  double passed = 0, taken = 0;
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    if (matrix[i] != wanted) continue;
    const auto bytes = static_cast<double>(table.slabs[i].bytes);
    passed += bytes;
    if (taken + bytes / 2 > share * passed) continue;
    taken += bytes;
    placement->on_disk[i] = true;
  }
}

}  // namespace

uint64_t WeightPlacement::ring_bytes_min() const {
  return disk_bytes == 0 ? 0 : StagingRing::bytes_for(group_bytes_max, slab_bytes_max);
}

uint64_t WeightPlacement::ring_bytes_good() const {
  return disk_bytes == 0
             ? 0
             : StagingRing::bytes_for(std::min(2 * group_bytes_max, disk_bytes), slab_bytes_max);
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

WeightPlacement place_weights(const ModelFileTable& table, uint64_t disk_bytes) {
  WeightPlacement placement;
  placement.on_disk.resize(table.slabs.size());
  std::vector<bool> matrix(table.slabs.size());
  uint64_t matrix_bytes = 0;
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.spec.kind != WeightKind::kMatrix) continue;
    for (uint32_t i = 0; i < tensor.slab_count; ++i) {
      matrix[tensor.first_slab + i] = true;
      matrix_bytes += table.slabs[tensor.first_slab + i].bytes;
    }
  }
  spread(table, matrix, true, disk_bytes, &placement);
  if (disk_bytes > matrix_bytes)
    spread(table, matrix, false, disk_bytes - matrix_bytes, &placement);
  const std::vector<uint32_t> groups = weight_groups(table);
  std::vector<uint64_t> group_bytes(static_cast<size_t>(table.shape.layers) + 2);
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    const uint64_t bytes = table.slabs[i].bytes;
    if (!placement.on_disk[i]) {
      placement.memory_bytes += bytes;
      continue;
    }
    placement.disk_bytes += bytes;
    placement.slab_bytes_max = std::max(placement.slab_bytes_max, bytes);
    group_bytes[groups[i]] += bytes;
  }
  placement.group_bytes_max = *std::max_element(group_bytes.begin(), group_bytes.end());
  return placement;
}

}  // namespace spillway
