// Decides which slabs of a model live in the device's memory, in host memory (for a discrete
// device) and on disk. Pure arithmetic; any thread.
//
// Slabs on slower tiers are streamed through the faster ones once a sweep, group by group: the
// embeddings, each layer, the head. Each tier's share is spread evenly over the matrices, so that
// every layer moves the same amount over a link; within a matrix a tier has one contiguous piece,
// the device the first, then the host, then the disk: adjacent slabs are one matmul (kernels/cuda),
// and many thin ones would leave a large device idle. Tables (of which a
// sweep needs a few rows) and vectors leave the device last.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/base/layer_range.h"
#include "offload/model_file/model_file.h"
#include "offload/tier.h"

namespace spillway {

// Bytes of the slabs that are streamed over one link, and the ring that they need.
struct StreamedBytes {
  uint64_t total = 0;
  uint64_t group_max = 0;  // The largest group's
  uint64_t slab_max = 0;

  // The smallest ring: it holds any group in use, wherever the group begins.
  uint64_t ring_min() const;
  // A ring that also holds the next group, so that the link's time and a layer's work overlap.
  // Never larger than all streamed slabs need.
  uint64_t ring_good() const;
};

struct WeightPlacement {
  std::vector<Tier> tiers;    // By slab; kNone: its layer is out of range
  uint64_t memory_bytes = 0;  // Resident on the device
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;
  StreamedBytes from_disk;
  StreamedBytes to_device;  // From host memory and disk, to a discrete device

  bool on_disk(size_t slab) const { return tiers[slab] == Tier::kDisk; }
  uint64_t ring_bytes_min() const { return from_disk.ring_min(); }
  uint64_t ring_bytes_good() const { return from_disk.ring_good(); }
};

// The group of each slab. 0: the embeddings; 1 + layer; layers + 1: final norm and head.
std::vector<uint32_t> weight_groups(const ModelFileTable& table);

// Whether an engine that runs `layers` needs the weights of `group`.
bool has_group(const LayerRange& layers, const ModelShape& shape, uint32_t group);

// Places a table's slabs. The search of a plan asks for the sums of thousands of placements; they
// take one step a matrix, not one a slab. REQUIRES: the table outlives it.
class WeightPlacer {
 public:
  // With `layers`: only their slabs, with the embeddings if they include the first layer and the
  // head if they include the last.
  explicit WeightPlacer(const ModelFileTable& table, std::optional<LayerRange> layers = {});
  explicit WeightPlacer(ModelFileTable&&, std::optional<LayerRange> = {}) = delete;

  uint64_t weight_bytes() const { return matrix_bytes_ + other_bytes_; }

  // `disk_bytes` of the slabs on disk and `host_bytes` in host memory, each to within one slab.
  WeightPlacement place(uint64_t disk_bytes, uint64_t host_bytes = 0) const;
  // Its sums alone; `tiers` is empty.
  WeightPlacement sums(uint64_t disk_bytes, uint64_t host_bytes = 0) const;

 private:
  // Adjacent slabs of one matrix or table, or a single slab of vectors. A tier takes slabs from the
  // end.
  struct Stretch {
    size_t first = 0, last = 0;
    uint32_t group = 0;
    bool matrix = false;
  };
  // By stretch: the first slab in host memory and the first on disk.
  struct Cuts {
    std::vector<size_t> host, disk;
  };

  // Bytes and largest slab of [begin, end). REQUIRES for slab_max: `end` is a stretch's.
  uint64_t bytes(size_t begin, size_t end) const { return before_[end] - before_[begin]; }
  uint64_t slab_max(size_t begin, size_t end) const { return begin < end ? largest_[begin] : 0; }
  uint64_t spread(bool matrices, uint64_t target, uint64_t all, std::vector<size_t>* begins,
                  const std::vector<size_t>& device_ends) const;
  Cuts cut(uint64_t disk_bytes, uint64_t host_bytes) const;
  WeightPlacement sums(const Cuts& cuts) const;

  const ModelFileTable& table_;
  std::vector<Stretch> stretches_;  // In the slabs' order
  std::vector<uint64_t> before_;    // By slab: bytes of all slabs before it
  std::vector<uint64_t> largest_;   // By slab: the largest from it to its stretch's end
  uint64_t matrix_bytes_ = 0, other_bytes_ = 0;
};

// As WeightPlacer::place(), for one placement of a table.
WeightPlacement place_weights(const ModelFileTable& table, uint64_t disk_bytes,
                              uint64_t host_bytes = 0, std::optional<LayerRange> layers = {});

}  // namespace spillway
