// The shapes that --dummy-weights knows by name: configs/models/NAME.json, written like a Hugging
// Face config.json. Any thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"

namespace spillway {

// Where shapes are looked for, best first: $SPILLWAY_CONFIGS, the source tree of a binary in
// build/PRESET, the installed share/spillway/configs, the tree this was built from.
std::vector<std::string> config_directories();

// The shape of that name; kNotFound lists the names there are. Blocks.
Result<ModelShape> find_model_shape(const std::string& name);

}  // namespace spillway
