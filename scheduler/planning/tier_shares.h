// How one kind of data (weights, KV cache, activations) is divided over the three tiers: in bytes,
// and in the whole per cents that flags and plans name. Pure values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "offload/tier.h"
#include "policy/placement_program.h"

namespace spillway {

// Per cent on device, host and disk; the sum is 100.
using TierPercent = std::array<int, 3>;

constexpr TierPercent kAllOnDevice = {100, 0, 0}, kAllOnHost = {0, 100, 0},
                      kAllOnDisk = {0, 0, 100};

// The faster tiers are rounded down, so that a plan that is read again fits where the first did;
// what rounding leaves over goes to the slowest tier in use. All on the device where there is
// nothing.
TierPercent percent_of(const TierShares& shares);
TierPercent percent_of(const TierBytes& bytes);

// "20,0,80": as the flags have it.
std::string percent_text(const TierPercent& percent);

}  // namespace spillway
