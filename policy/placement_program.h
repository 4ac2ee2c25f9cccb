// Shares of weights, KV cache and activations on each tier, for a given block: a linear program
// over the shares, as in FlexGen (arXiv 2303.06865, section 4.3), but with the time of a sweep as
// the longest of its resources. Pure arithmetic, any thread.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/status.h"
#include "policy/cost_model.h"

namespace spillway {

// Shares on device, host and disk, adding up to 1. On the CPU host is 0: the device tier is host
// memory.
struct TierShares {
  double device = 1, host = 0, disk = 0;
};

struct PlacementShares {
  TierShares weights, kv, activations;
};

struct PlacementRoom {
  uint64_t weights = 0, kv = 0, activations = 0;  // To be placed; activations: residual rows
  uint64_t device = 0, host = 0, disk = 0;        // Capacity of each tier for them
  bool weights_stream = true;                     // False: all weights on the device
  bool kv_leaves = true;                          // False: all of the cache on the device
  bool kv_to_disk = true;                         // False: the cache stays off the disk
  bool activations_leave = false;                 // False: all activations on the device
};

// The shares with the least time for `sweeps`, whose transfers are linear in them; the shares in
// `plan` are ignored. kInfeasible: no shares fit.
Result<PlacementShares> best_shares(const CostedPlan& plan, const MachineRates& rates,
                                    std::span<const PlannedSweeps> sweeps,
                                    const PlacementRoom& room);

}  // namespace spillway
