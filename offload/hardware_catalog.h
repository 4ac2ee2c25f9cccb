// The hardware profiles that come with the program: configs/hardware/NAME.json, written by hand
// from published figures; and FlexGen's constants beside them. Any thread; blocks.
#pragma once

#include <string>

#include "kernels/base/status.h"
#include "policy/flexgen/flexgen_hardware.h"
#include "policy/hardware_profile.h"

namespace spillway {

// The profile in the file `name`, if it has a '/' or ends in ".json", else the one of that name in
// configs/hardware. kNotFound lists the names there are; kInvalidArgument names file and field.
Result<HardwareProfile> find_hardware_profile(const std::string& name);

// The same for the constants of FlexGen's cost model, of which one set comes with the program.
constexpr const char* kFlexgenHardwareName = "flexgen-t4";
Result<FlexgenHardware> find_flexgen_hardware(const std::string& name = kFlexgenHardwareName);

}  // namespace spillway
