// Which slabs of a model live in the device's memory, in the host's where that is another, and on
// disk. Pure arithmetic; any thread.
//
// Slabs that live elsewhere pass through the faster tiers once a sweep, group by group: the
// embeddings, each layer, the head. Each tier's share is spread evenly over the matrices, so that a
// link is asked for the same amount in every layer; within a matrix a tier has one piece, the
// device the first, then the host, then the disk: what lies together is one product (kernels/cuda,
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

// Slabs that pass through memory, and the memory they need for it.
struct StreamedBytes {
  uint64_t total = 0;
  uint64_t group_max = 0;  // Of one group
  uint64_t slab_max = 0;

  // The group in use must fit, wherever it begins.
  uint64_t ring_min() const;
  // ... and a whole group ahead, which hides the link behind a layer's work or the other way
  // round. Never more than holds all of them.
  uint64_t ring_good() const;
};

struct WeightPlacement {
  std::vector<Tier> tiers;    // By slab; kNone: of layers out of range
  uint64_t memory_bytes = 0;  // Of those on the device
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;
  StreamedBytes from_disk;
  StreamedBytes to_device;  // From host memory and disk, where the device has memory of its own

  bool on_disk(size_t slab) const { return tiers[slab] == Tier::kDisk; }
  uint64_t ring_bytes_min() const { return from_disk.ring_min(); }
  uint64_t ring_bytes_good() const { return from_disk.ring_good(); }
};

// 0: the embeddings; 1 + layer; layers + 1: final norm and head. By slab.
std::vector<uint32_t> weight_groups(const ModelFileTable& table);

// Whether the weights of such a group go with these layers.
bool has_group(const LayerRange& layers, const ModelShape& shape, uint32_t group);

// `disk_bytes` and `host_bytes` of the slabs, each to within one, live there. With `layers`: of
// the slabs of these, with the embeddings or the head if they are the first or the last.
WeightPlacement place_weights(const ModelFileTable& table, uint64_t disk_bytes,
                              uint64_t host_bytes = 0, std::optional<LayerRange> layers = {});

}  // namespace spillway
