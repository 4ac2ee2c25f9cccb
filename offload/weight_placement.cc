#include "offload/weight_placement.h"

#include <algorithm>

#include "offload/io/staging_ring.h"

namespace spillway {

namespace {

// Adds up the slabs that are streamed through a ring, in order.
class Streamed {
 public:
  explicit Streamed(StreamedBytes* sum) : sum_(*sum) {}
  void add(uint32_t group, uint64_t bytes, uint64_t slab_max) {
    if (bytes == 0) return;
    if (group != group_) group_bytes_ = 0;
    group_ = group;
    group_bytes_ += bytes;
    sum_.total += bytes;
    sum_.slab_max = std::max(sum_.slab_max, slab_max);
    sum_.group_max = std::max(sum_.group_max, group_bytes_);
  }

 private:
  StreamedBytes& sum_;
  uint32_t group_ = 0;
  uint64_t group_bytes_ = 0;
};

}  // namespace

bool has_group(const LayerRange& layers, const ModelShape& shape, uint32_t group) {
  if (group == 0) return layers.embeds(shape);
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

WeightPlacer::WeightPlacer(const ModelFileTable& table, std::optional<LayerRange> layers)
    : table_(table), before_(table.slabs.size() + 1), largest_(table.slabs.size()) {
  const LayerRange range = layers.value_or(all_layers(table.shape));
  const std::vector<uint32_t> groups = weight_groups(table);
  for (size_t i = 0; i < table.slabs.size(); ++i)
    before_[i + 1] = before_[i] + table.slabs[i].bytes;
  for (const TensorInfo& tensor : table.tensors) {
    const size_t first = tensor.first_slab;
    if (tensor.slab_count == 0 || !has_group(range, table.shape, groups[first])) continue;
    stretches_.push_back(
        {first, first + tensor.slab_count, groups[first], tensor.spec.kind == WeightKind::kMatrix});
  }
  std::sort(stretches_.begin(), stretches_.end(),
            [](const Stretch& a, const Stretch& b) { return a.first < b.first; });
  // The vectors of a layer share their slab.
  const auto same = [](const Stretch& a, const Stretch& b) { return a.first == b.first; };
  stretches_.erase(std::unique(stretches_.begin(), stretches_.end(), same), stretches_.end());
  for (const Stretch& stretch : stretches_) {
    (stretch.matrix ? matrix_bytes_ : other_bytes_) += bytes(stretch.first, stretch.last);
    uint64_t largest = 0;
    for (size_t i = stretch.last; i > stretch.first; --i) {
      largest = std::max(largest, table.slabs[i - 1].bytes);
      largest_[i - 1] = largest;
    }
  }
}

// Moves `target` of the `all` bytes that the stretches with matrix == `matrices` still have on the
// device to another tier: an even share of each, to within half a slab, which the next one makes up
// for. Sets `begins`: by stretch, the first slab that left. Returns the bytes left on the device.
uint64_t WeightPlacer::spread(bool matrices, uint64_t target, uint64_t all,
                              std::vector<size_t>* begins,
                              const std::vector<size_t>& device_ends) const {
  if (target == 0 || all == 0) return all;
  const double share = std::min(1.0, static_cast<double>(target) / static_cast<double>(all));
  uint64_t passed = 0, taken = 0;
  for (size_t s = 0; s < stretches_.size(); ++s) {
    if (stretches_[s].matrix != matrices) continue;
    const size_t first = stretches_[s].first, end = device_ends[s];
    passed += bytes(first, end);
    const double due = share * static_cast<double>(passed);
    // Whether the slabs from `begin` on may all leave: each half of its bytes within what is due.
    const auto leaves = [&](size_t begin) {
      const uint64_t later = taken + bytes(begin + 1, end);
      return static_cast<double>(later) + static_cast<double>(bytes(begin, begin + 1)) / 2 <= due;
    };
    size_t low = first, high = end;  // The slabs from `high` on leave, those before `low` may not.
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (leaves(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    (*begins)[s] = high;
    taken += bytes(high, end);
  }
  return all - taken;
}

WeightPlacer::Cuts WeightPlacer::cut(uint64_t disk_bytes, uint64_t host_bytes) const {
  Cuts cuts;
  for (const Stretch& stretch : stretches_) cuts.disk.push_back(stretch.last);
  uint64_t matrices = matrix_bytes_, others = other_bytes_;
  const auto leave = [&](uint64_t target, const std::vector<size_t>& ends,
                         std::vector<size_t>* begins) {
    const uint64_t rest = target - std::min(target, matrices);
    matrices = spread(true, target, matrices, begins, ends);
    others = spread(false, rest, others, begins, ends);
  };
  leave(disk_bytes, std::vector<size_t>(cuts.disk), &cuts.disk);
  cuts.host = cuts.disk;
  leave(host_bytes, cuts.disk, &cuts.host);
  return cuts;
}

WeightPlacement WeightPlacer::sums(const Cuts& cuts) const {
  WeightPlacement placement;
  Streamed from_disk(&placement.from_disk), to_device(&placement.to_device);
  for (size_t s = 0; s < stretches_.size(); ++s) {
    const Stretch& stretch = stretches_[s];
    const size_t host = cuts.host[s], disk = cuts.disk[s];
    const uint64_t on_disk = bytes(disk, stretch.last);
    placement.memory_bytes += bytes(stretch.first, host);
    placement.host_bytes += bytes(host, disk);
    placement.disk_bytes += on_disk;
    from_disk.add(stretch.group, on_disk, slab_max(disk, stretch.last));
    to_device.add(stretch.group, bytes(host, stretch.last), slab_max(host, stretch.last));
  }
  return placement;
}

WeightPlacement WeightPlacer::sums(uint64_t disk_bytes, uint64_t host_bytes) const {
  return sums(cut(disk_bytes, host_bytes));
}

WeightPlacement WeightPlacer::place(uint64_t disk_bytes, uint64_t host_bytes) const {
  const Cuts cuts = cut(disk_bytes, host_bytes);
  WeightPlacement placement = sums(cuts);
  placement.tiers.resize(table_.slabs.size(), Tier::kNone);
  const auto put = [&](size_t begin, size_t end, Tier tier) {
    std::fill(placement.tiers.begin() + static_cast<ptrdiff_t>(begin),
              placement.tiers.begin() + static_cast<ptrdiff_t>(end), tier);
  };
  for (size_t s = 0; s < stretches_.size(); ++s) {
    put(stretches_[s].first, cuts.host[s], Tier::kDevice);
    put(cuts.host[s], cuts.disk[s], Tier::kHost);
    put(cuts.disk[s], stretches_[s].last, Tier::kDisk);
  }
  return placement;
}

WeightPlacement place_weights(const ModelFileTable& table, uint64_t disk_bytes, uint64_t host_bytes,
                              std::optional<LayerRange> layers) {
  return WeightPlacer(table, layers).place(disk_bytes, host_bytes);
}

}  // namespace spillway
