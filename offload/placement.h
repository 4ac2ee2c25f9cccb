// Turns budgets and percentages into bytes by tier. What nobody fixed is filled from the fastest
// tier down: weights first, then KV cache, then activations; what is left over goes to the next
// tier, with memory for what passes through. Pure arithmetic, any thread.
//
// There are three tiers on every machine. Where the device has no memory of its own (the CPU), the
// device tier is host memory and its link is free: what the tier takes counts against the host's
// budget, the host tier stays empty, and nothing passes through a ring to reach the device.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/status.h"
#include "offload/tier.h"
#include "offload/weight_placement.h"

namespace spillway {

// A memory and what is taken of it wherever weights and cache live.
struct MemoryTier {
  uint64_t budget_bytes = 0;
  bool from_flag = false;      // Else the budget is what is free; for messages
  uint64_t process_bytes = 0;  // Of the process, or of a device's driver and libraries
  uint64_t buffer_bytes = 0;   // The engine's on this tier, activations included
};

struct PlacementRequest {
  const ModelFileTable* table = nullptr;  // Of the weights
  bool discrete = false;  // The device has memory of its own; else its budget is the host's.
  MemoryTier device, host;
  uint64_t disk_bytes = 0;          // Budget of KV cache in scratch files
  uint64_t disk_free_bytes = 0;     // What they can really have
  bool weights_in_scratch = false;  // Those on disk take some of that, too (dummy weights)

  uint64_t kv_staged_bytes_max = 0;  // A layer on disk of any sequence that may come
  uint64_t kv_layer_disk_bytes = 0;  // Of the longest sequence that is planned for: a layer on disk
  uint64_t kv_sequence_bytes_max = 0;  // ... and all layers in memory
  uint64_t kv_layers = 0;
  uint64_t kv_bytes_wanted = 0;  // What the block can use, in memory

  // Of all, 0 to 1; the rest is the device's. None: decided here.
  struct Shares {
    double host = 0, disk = 0;  // host: 0 unless the device is discrete
    double away() const { return host + disk; }
  };
  std::optional<Shares> weights_shares, kv_shares;
};

struct Placement {
  WeightPlacement weights;
  TierBytes kv;
  RingBytes host_rings;    // From disk; in host memory
  RingBytes device_rings;  // From host memory and disk; in the memory of a discrete device

  // Of each budget, all that the request fixes included; of disk, what scratch files hold.
  TierBytes taken(const PlacementRequest& request) const;
};

// kInfeasible: nothing fits; the message names what is missing and the smallest change.
Result<Placement> place(const PlacementRequest& request);

}  // namespace spillway
