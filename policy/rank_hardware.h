// What one of several ranks of a machine has of it, where these share every layer of a model: the
// cost model then sees a rank's plan on a rank's hardware. Pure function, any thread.
#pragma once

#include <cstdint>

#include "policy/hardware_profile.h"

namespace spillway {

// Ranks on a CPU divide the rates of its processors, memory and disk. Those on GPUs have one each,
// with its link, and divide the rates of host memory, of the processors and of the disk. Capacities
// stay whole: make_plan() divides them. What ranks say to each other is not in it: on a CPU it is
// copied at the rate of memory.
HardwareProfile rank_hardware(const HardwareProfile& machine, int64_t ranks);

}  // namespace spillway
