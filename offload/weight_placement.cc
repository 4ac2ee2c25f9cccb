#include "offload/weight_placement.h"

#include <algorithm>

#include "offload/io/staging_ring.h"

namespace spillway {

namespace {

// Adjacent slabs of one matrix or table, or a single slab of vectors. A tier takes slabs from the
// end.
struct Stretch {
  size_t first = 0, last = 0;
  bool matrix = false;
};

std::vector<Stretch> stretches_of(const ModelFileTable& table) {
  std::vector<Stretch> stretches;
  for (const TensorInfo& tensor : table.tensors) {
    const size_t first = tensor.first_slab;
    stretches.push_back(
        {first, first + tensor.slab_count, tensor.spec.kind == WeightKind::kMatrix});
  }
  std::sort(stretches.begin(), stretches.end(),
            [](const Stretch& a, const Stretch& b) { return a.first < b.first; });
  // The vectors of a layer share their slab.
  const auto same = [](const Stretch& a, const Stretch& b) { return a.first == b.first; };
  stretches.erase(std::unique(stretches.begin(), stretches.end(), same), stretches.end());
  return stretches;
}

// Moves `target` of the `all` bytes that the stretches with matrix == wanted still have on the
// device to `tier`: an even share of each, to within half a slab, which the next one makes up for.
// Returns the bytes left on the device.
uint64_t spread(const ModelFileTable& table, const std::vector<Stretch>& stretches, bool wanted,
                Tier tier, uint64_t target, uint64_t all, WeightPlacement* placement) {
  if (target == 0 || all == 0) return all;
  const double share = std::min(1.0, static_cast<double>(target) / static_cast<double>(all));
  double passed = 0, taken = 0;
  uint64_t left = all;
  for (const Stretch& stretch : stretches) {
    if (stretch.matrix != wanted) continue;
    size_t end = stretch.first;
    for (; end < stretch.last && placement->tiers[end] == Tier::kDevice; ++end) {
      passed += static_cast<double>(table.slabs[end].bytes);
    }
    for (; end > stretch.first; --end) {
      const uint64_t bytes = table.slabs[end - 1].bytes;
      if (taken + static_cast<double>(bytes) / 2 > share * passed) break;
      taken += static_cast<double>(bytes);
      placement->tiers[end - 1] = tier;
      left -= bytes;
    }
  }
  return left;
}

// Adds up the slabs that are streamed through a ring, in order.
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

bool has_group(const LayerRange& layers, const ModelShape& shape, uint32_t group) {
  if (group == 0) return layers.embeds();
  const int64_t layer = static_cast<int64_t>(group) - 1;
  return layer == shape.layers ? layers.has_head(shape) : layers.contains(layer);
}

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

// The search of a plan calls this thousands of times.
WeightPlacement place_weights(const ModelFileTable& table, uint64_t disk_bytes, uint64_t host_bytes,
                              std::optional<LayerRange> layers) {
  const LayerRange range = layers.value_or(all_layers(table.shape));
  const std::vector<uint32_t> groups = weight_groups(table);
  WeightPlacement placement;
  placement.tiers.resize(table.slabs.size(), Tier::kDevice);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!has_group(range, table.shape, groups[i])) placement.tiers[i] = Tier::kNone;
  }
  const std::vector<Stretch> stretches = stretches_of(table);
  uint64_t matrices = 0, others = 0;
  for (const Stretch& stretch : stretches) {
    for (size_t i = stretch.first; i < stretch.last; ++i) {
      if (placement.tiers[i] == Tier::kNone) continue;
      (stretch.matrix ? matrices : others) += table.slabs[i].bytes;
    }
  }
  const auto leave = [&](Tier tier, uint64_t bytes) {
    const uint64_t rest = bytes - std::min(bytes, matrices);
    matrices = spread(table, stretches, true, tier, bytes, matrices, &placement);
    others = spread(table, stretches, false, tier, rest, others, &placement);
  };
  leave(Tier::kDisk, disk_bytes);
  leave(Tier::kHost, host_bytes);
  Streamed from_disk(&placement.from_disk), to_device(&placement.to_device);
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    const Tier tier = placement.tiers[i];
    const uint64_t bytes = table.slabs[i].bytes;
    if (tier == Tier::kNone) continue;
    (tier == Tier::kDevice ? placement.memory_bytes
     : tier == Tier::kHost ? placement.host_bytes
                           : placement.disk_bytes) += bytes;
    if (tier == Tier::kDisk) from_disk.add(groups[i], bytes);
    if (tier != Tier::kDevice) to_device.add(groups[i], bytes);
  }
  return placement;
}

}  // namespace spillway
