// A device on paper: what a plan must know of one that is not here (its kind, its memory, the
// formats and layouts its kernels want), and nothing that computes.
#pragma once

#include <memory>

#include "kernels/device.h"
#include "policy/hardware_profile.h"

namespace spillway {

// kInvalidArgument: the profile's compute.kind is none that there is.
Result<std::unique_ptr<Device>> planning_device(const HardwareProfile& hardware);

}  // namespace spillway
