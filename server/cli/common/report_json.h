// JSON members common to several commands. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kernels/base/format.h"

namespace spillway {

// The quantisation error of weights: {"format", "group", "relative_rms", "error_max",
// "saturated"}.
nlohmann::json json_of_quantization(Format format, const QuantError& error);

}  // namespace spillway
