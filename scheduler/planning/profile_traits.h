// The traits of a device that is not here, from its hardware profile.
#pragma once

#include "kernels/base/status.h"
#include "kernels/device_traits.h"
#include "policy/hardware_profile.h"

namespace spillway {

// A CPU's formats and layouts are those of this machine's. kInvalidArgument: the profile's
// compute.kind is none that there is.
Result<DeviceTraits> traits_of(const HardwareProfile& hardware);

}  // namespace spillway
