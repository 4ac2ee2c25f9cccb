// The hardware profiles that come with the program: configs/hardware/NAME.json, written by hand
// from published figures. Any thread; blocks.
#pragma once

#include <string>

#include "kernels/base/status.h"
#include "policy/hardware_profile.h"

namespace spillway {

// The profile in the file `name`, if it has a '/' or ends in ".json", else the one of that name in
// configs/hardware. kNotFound lists the names there are; kInvalidArgument names file and field.
Result<HardwareProfile> find_hardware_profile(const std::string& name);

}  // namespace spillway
