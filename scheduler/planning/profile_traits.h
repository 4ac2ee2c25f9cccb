// The traits of a device described by a hardware profile, which this machine need not have.
#pragma once

#include "kernels/base/status.h"
#include "kernels/device_traits.h"
#include "policy/hardware_profile.h"

namespace spillway {

// A CPU gets the formats and layouts of this machine's CPU. kInvalidArgument: the profile's
// compute.kind is unknown.
Result<DeviceTraits> traits_of(const HardwareProfile& hardware);

}  // namespace spillway
