// Which slabs of a model live in memory and which on disk. Pure arithmetic; any thread.
//
// Slabs on disk pass through memory once a sweep, group by group: the embeddings, each layer, the
// head. The share on disk is spread evenly, so that the disk is asked for the same amount in every
// layer. Tables (of which a sweep needs a few rows) and vectors go to disk last.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/model_file.h"

namespace spillway {

struct WeightPlacement {
  std::vector<bool> on_disk;  // By slab
  uint64_t disk_bytes = 0;
  uint64_t memory_bytes = 0;
  uint64_t group_bytes_max = 0;  // Of the slabs on disk in one group
  uint64_t slab_bytes_max = 0;   // Of those on disk

  // Memory that they need to pass through: the group in use must fit, wherever it begins.
  uint64_t ring_bytes_min() const;
  // ... to read a whole group ahead, which hides the disk behind a layer's work or the other way
  // round. Never more than holds all of them.
  uint64_t ring_bytes_good() const;
};

// 0: the embeddings; 1 + layer; layers + 1: final norm and head. By slab.
std::vector<uint32_t> weight_groups(const ModelFileTable& table);

// `disk_bytes` of the slabs, to within one, live on disk.
WeightPlacement place_weights(const ModelFileTable& table, uint64_t disk_bytes);

}  // namespace spillway
