// ModelShape as JSON, for the packed file's table. Pure functions, any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"

namespace spillway {

nlohmann::json json_of_shape(const ModelShape& shape);

// The inverse of json_of_shape(); the result is validate()d.
Result<ModelShape> shape_of_json(const nlohmann::json& object);

}  // namespace spillway
