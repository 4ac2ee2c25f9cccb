// How several ranks of one process, which share every layer of a model, divide its memory: evenly,
// but for the embeddings, which the first alone has. Pure arithmetic, any thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "offload/model_file/model_file.h"
#include "offload/weight_placement.h"

namespace spillway {

struct RankMemory {
  uint64_t ranks = 1;
  uint64_t of_first = 0;  // Bytes that the first has besides an even share
  bool is_first = true;

  // The rank's bytes of so many.
  uint64_t share_of(uint64_t whole) const {
    const uint64_t firsts = std::min(of_first, whole);
    return (whole - firsts) / ranks + (is_first ? firsts : 0);
  }
  // The least of all ranks, of which this one has `own` bytes.
  uint64_t whole_of(uint64_t own) const {
    const uint64_t even = is_first ? own - std::min(of_first, own) : own;
    return even * ranks + (ranks > 1 ? of_first : 0);
  }
};

// `table`: a rank's. `in_host`: weights live in the memory that is divided, not on devices.
inline RankMemory rank_memory(const ModelFileTable& table, bool in_host) {
  RankMemory memory{static_cast<uint64_t>(table.shape.ranks), 0, table.shape.rank == 0};
  if (memory.ranks == 1 || !in_host) return memory;
  const std::vector<uint32_t> groups = weight_groups(table);
  for (size_t i = 0; i < groups.size() && groups[i] == 0; ++i) {
    memory.of_first += table.slabs[i].bytes;
  }
  return memory;
}

}  // namespace spillway
