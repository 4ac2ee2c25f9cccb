// Decides which slabs of a model live in the device's memory, in host memory (for a discrete
// device) and on disk. Pure arithmetic; any thread.
//
// Slabs on slower tiers are streamed through the faster ones once a sweep, group by group: the
// embeddings, each layer, the head. Each tier's share is spread evenly over the matrices, so that
// every layer moves the same amount over a link; within a matrix a tier has one contiguous piece,
// the device the first, then the host, then the disk: adjacent slabs are one matmul (kernels/cuda,
// and oneDNN on the CPU), and many thin ones would leave a large device idle. Tables (of which a
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

// Places `disk_bytes` of the slabs on disk and `host_bytes` in host memory, each to within one
// slab. With `layers`: only their slabs, with the embeddings if they include the first layer and
// the head if they include the last.
WeightPlacement place_weights(const ModelFileTable& table, uint64_t disk_bytes,
                              uint64_t host_bytes = 0, std::optional<LayerRange> layers = {});

}  // namespace spillway
