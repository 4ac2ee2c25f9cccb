// The shapes that --dummy-weights knows by name: configs/models/NAME.json, written like a Hugging
// Face config.json. Any thread.
#pragma once

#include <string>

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"

namespace spillway {

// The shape of that name; kNotFound lists the names there are. Blocks.
Result<ModelShape> find_model_shape(const std::string& name);

}  // namespace spillway
