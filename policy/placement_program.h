// Which share of weights, KV cache and activations lives on which tier, for a block that is given:
// a linear program over the shares, as in FlexGen (arXiv 2303.06865, section 4.3), but with the
// time of a sweep as the longest of its resources. Pure arithmetic, any thread.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/status.h"
#include "policy/cost_model.h"

namespace spillway {

// Of device, host and disk, adding up to 1. On the CPU host is 0: the device tier is host memory.
struct TierShares {
  double device = 1, host = 0, disk = 0;
};

struct PlacementShares {
  TierShares weights, kv, activations;
};

struct PlacementRoom {
  uint64_t weights = 0, kv = 0, activations = 0;  // Bytes that live somewhere; activations: the
                                                  // residual stream's rows
  uint64_t device = 0, host = 0, disk = 0;        // Room for them on each tier
  bool weights_stream = true;                     // False: all of them on the device
  bool kv_leaves = true;                          // The same of the cache
  bool kv_to_disk = true;                         // False: not so far
  bool activations_leave = false;                 // The same of activations
};

// The shares with the least time of `sweeps`, whose transfers are linear in them; what `plan` says
// of shares is not looked at. kInfeasible: no shares have room.
Result<PlacementShares> best_shares(const CostedPlan& plan, const MachineRates& rates,
                                    std::span<const PlannedSweeps> sweeps,
                                    const PlacementRoom& room);

}  // namespace spillway
