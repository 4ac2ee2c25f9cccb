// Turns budgets and percentages into bytes by tier. Shares that no flag fixes are filled by a
// default heuristic: weights take the fastest tier, then the KV cache, and the remainder goes to
// the next tier, with staging buffers for it; on a CPU whose weights must stream, half of the
// memory is the cache's. Pure arithmetic, any thread.
//
// There are three tiers on every machine. Where the device is not discrete (the CPU), the device
// tier is host memory and its link is free: the tier's bytes count against the host's budget, the
// host tier stays empty, and no ring is needed to reach the device.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/status.h"
#include "offload/rank_memory.h"
#include "offload/tier.h"
#include "offload/weight_placement.h"

namespace spillway {

// A memory's budget and the bytes of it that are taken wherever weights and cache live.
struct MemoryTier {
  uint64_t budget_bytes = 0;
  bool from_flag = false;      // Else the budget is the free memory; for messages
  uint64_t process_bytes = 0;  // Taken by the process, or by a device's driver and libraries
  uint64_t buffer_bytes = 0;   // The engine's buffers on this tier, activations included
  RankMemory divided = {};     // Of several ranks, which divide what the flag names; for messages
};

struct PlacementRequest {
  const ModelFileTable* table = nullptr;  // The weights' slabs
  std::optional<LayerRange> layers;       // Only these are placed; none: all. The cache's sizes
                                          // below are those of the same layers.
  bool discrete = false;                  // Else the device's budget is the host's.
  MemoryTier device, host;
  uint64_t disk_bytes = 0;          // Budget of KV cache in scratch files
  uint64_t disk_free_bytes = 0;     // Free space for scratch files
  bool weights_in_scratch = false;  // Weights on disk take scratch space, too (dummy weights)

  uint64_t kv_staged_bytes_max = 0;  // Largest layer on disk of any admissible sequence
  // Of the longest planned sequence: its largest layer on disk, all layers on disk and in memory.
  uint64_t kv_layer_disk_bytes = 0;
  uint64_t kv_sequence_disk_bytes = 0;
  uint64_t kv_sequence_bytes_max = 0;
  uint64_t kv_bytes_wanted = 0;  // Cache that a full block can use, as in memory
  // The size of the ring for layers on disk that is worth its memory, where it is more than usual.
  uint64_t kv_ring_bytes_good = 0;

  // Fractions of the total, 0 to 1; the rest is the device's. None: place() decides.
  struct Shares {
    double host = 0, disk = 0;  // host: 0 unless the device is discrete
    double away() const { return host + disk; }
  };
  std::optional<Shares> weights_shares, kv_shares;
};

struct Placement {
  WeightPlacement weights;
  TierBytes kv;
  RingBytes host_rings;    // Staging from disk, in host memory
  RingBytes device_rings;  // Staging from host memory and disk, in a discrete device's memory

  // Bytes taken of each budget, including those that the request fixes; of disk, the bytes of
  // scratch files.
  TierBytes taken(const PlacementRequest& request) const;
};

// kInfeasible: nothing fits; the message names what is missing and the smallest change.
Result<Placement> place(const PlacementRequest& request);

}  // namespace spillway
