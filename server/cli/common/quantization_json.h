// The quantisation error of 4-bit weights as `inspect` and `eval` report it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kernels/base/q4.h"

namespace spillway {

// {"format", "group", "relative_rms", "error_max", "saturated"}
nlohmann::json json_of_quantization(Format format, const QuantError& error);

}  // namespace spillway
