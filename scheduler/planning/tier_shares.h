// Shares of one kind of data (weights, KV cache, activations) on the three tiers: in bytes, and in
// the whole per cents of flags and plans. Pure values; any thread.
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

// Rounds the faster tiers down, so that a plan that is read again fits where the first did; the
// remainder goes to the slowest tier in use. Without any data: all on the device.
TierPercent percent_of(const TierShares& shares);
TierPercent percent_of(const TierBytes& bytes);

// "20,0,80": the syntax of the flags.
std::string percent_text(const TierPercent& percent);

}  // namespace spillway
