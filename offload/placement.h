// Turns budgets and percentages into bytes by tier. What nobody fixed is filled from the fastest
// tier down: weights first, then KV cache, then activations; what is left over goes to the next
// tier, with memory for what passes through. Pure arithmetic, any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/status.h"
#include "offload/weight_placement.h"

namespace spillway {

struct PlacementRequest {
  const ModelFileTable* table = nullptr;  // Of the weights
  uint64_t memory_bytes = 0;              // Budget of everything below
  bool memory_from_flag = false;          // Else what is free; for messages
  uint64_t disk_bytes = 0;                // Budget of KV cache in scratch files
  uint64_t disk_free_bytes = 0;           // What they can really have
  bool weights_in_scratch = false;        // Those on disk take some of that, too (dummy weights)
  uint64_t process_bytes = 0;             // Taken by what nobody plans
  uint64_t buffer_bytes = 0;              // The engine's, activations included

  uint64_t kv_staged_bytes_max = 0;  // A layer on disk of any sequence that may come
  uint64_t kv_layer_disk_bytes = 0;  // Of the longest sequence that is planned for: a layer on disk
  uint64_t kv_sequence_bytes_max = 0;  // ... and all layers in memory
  uint64_t kv_layers = 0;
  uint64_t kv_bytes_wanted = 0;  // What the block can use, in memory

  // On disk, of all: 0 to 1. None: decided here.
  std::optional<double> weights_disk_share, kv_disk_share;

  // A device with memory of its own: what is above is the host's then, but for the shares.
  struct OwnMemory {
    uint64_t bytes = 0;  // Budget of everything on the device
    bool from_flag = false;
    uint64_t process_bytes = 0;  // Taken by its driver and libraries
    uint64_t buffer_bytes = 0;   // The engine's, activations included
    // In host memory, of all; where the shares on disk are given.
    double weights_host_share = 0, kv_host_share = 0;
  };
  std::optional<OwnMemory> device;
};

struct Placement {
  WeightPlacement weights;
  uint64_t ring_bytes = 0;  // Through which weights on disk pass
  uint64_t kv_memory_bytes = 0, kv_disk_bytes = 0;
  uint64_t kv_staging_bytes = 0;  // Through which the latter passes

  uint64_t memory_bytes(const PlacementRequest& request) const {
    return request.process_bytes + request.buffer_bytes + weights.memory_bytes + ring_bytes +
           kv_memory_bytes + kv_staging_bytes;
  }

  // On a device with memory of its own, where kv_memory_bytes is in that memory.
  uint64_t kv_host_bytes = 0;
  uint64_t device_ring_bytes = 0;  // Through which weights of the other tiers pass
  uint64_t kv_ring_bytes = 0;      // The same of the KV cache
};

// kInfeasible: nothing fits; the message names what is missing and the smallest change.
Result<Placement> place(const PlacementRequest& request);

// The same where request.device is there; place() calls it.
Result<Placement> place_on_device(const PlacementRequest& request);

}  // namespace spillway
