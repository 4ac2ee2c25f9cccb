// Files that come with the program, by name: configs/models/NAME.json, the shapes that
// --dummy-weights knows, written like a Hugging Face config.json; configs/hardware/NAME.json,
// profiles written by hand from published figures, and FlexGen's constants beside them. Any thread;
// blocks.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "policy/flexgen/flexgen_hardware.h"
#include "policy/hardware_profile.h"

namespace spillway {

// Directories in which configs/ is looked for, best first: $SPILLWAY_CONFIGS, the source tree of a
// binary in build/PRESET, the installed share/spillway/configs, the tree this was built from.
std::vector<std::string> config_directories();

// The model shape called `name`; kNotFound lists the known names.
Result<ModelShape> find_model_shape(const std::string& name);

// The profile in the file `name`, if it has a '/' or ends in ".json", else the one of that name in
// configs/hardware. kNotFound lists the known names; kInvalidArgument names file and field.
Result<HardwareProfile> find_hardware_profile(const std::string& name);

// Finds constants of FlexGen's cost model, likewise; one set comes with the program.
constexpr const char* kFlexgenHardwareName = "flexgen-t4";
Result<FlexgenHardware> find_flexgen_hardware(const std::string& name = kFlexgenHardwareName);

}  // namespace spillway
