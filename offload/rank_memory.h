// How several ranks of one process, which share every layer of a model, divide its memory: evenly,
// but for the embeddings, if they are among it, which the first alone has. Pure arithmetic, any
// thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/layer_range.h"
#include "offload/model_file/model_file.h"
#include "offload/weight_placement.h"

namespace spillway {

struct RankMemory {
  uint64_t ranks = 1;
  uint64_t of_first = 0;  // Bytes of weights that the first has besides an even share
  uint64_t weights = 0;   // Of all ranks
  bool is_first = true;

  // The rank's bytes of so many. Of weights that do not fit the first has as large a part of its
  // own in memory as of the others.
  uint64_t share_of(uint64_t whole) const {
    uint64_t firsts = of_first;
    if (whole < weights) {
      firsts = static_cast<uint64_t>(static_cast<double>(of_first) * static_cast<double>(whole) /
                                     static_cast<double>(weights));
    }
    return (whole - firsts) / ranks + (is_first ? firsts : 0);
  }

  // The least of which the rank's share is `own` bytes.
  uint64_t whole_of(uint64_t own) const {
    uint64_t too_few = 0, enough = ranks * (own + 1) + of_first;
    while (too_few + 1 < enough) {
      const uint64_t middle = too_few + (enough - too_few) / 2;
      (share_of(middle) >= own ? enough : too_few) = middle;
    }
    return enough;
  }
};

// `table`: a rank's, of whose layers it has these. `in_host`: weights live in the memory that is
// divided, not on devices.
inline RankMemory rank_memory(const ModelFileTable& table, const LayerRange& layers, bool in_host) {
  RankMemory memory;
  memory.ranks = static_cast<uint64_t>(table.shape.ranks);
  memory.is_first = table.shape.rank == 0;
  if (memory.ranks == 1 || !in_host) return memory;
  const std::vector<uint32_t> groups = weight_groups(table);
  for (size_t i = 0; i < groups.size(); ++i) {
    // The other ranks are to know of the first one's embeddings.
    if (groups[i] == 0 ? layers.first > 0 : !has_group(layers, table.shape, groups[i])) continue;
    (groups[i] == 0 ? memory.of_first : memory.weights) += table.slabs[i].bytes;
  }
  memory.weights = memory.weights * memory.ranks + memory.of_first;
  return memory;
}

// Bytes of the weights of `layers` on all ranks, of which `table` is one's.
inline uint64_t weight_bytes_of_ranks(const ModelFileTable& table, const LayerRange& layers) {
  if (table.shape.ranks == 1) return WeightPlacer(table, layers).weight_bytes();
  return rank_memory(table, layers, true).weights;
}

}  // namespace spillway
