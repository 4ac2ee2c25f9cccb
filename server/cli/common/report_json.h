// Members that the JSON of several commands has alike. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kernels/base/q4.h"
#include "policy/kv_rule.h"

namespace spillway {

// Adds kv_rule, kv_heavy, kv_recent, kv_sink and kv_ratio_of.
void add_kv_rule(const KvRule& rule, nlohmann::json* object);

// The quantisation error of 4-bit weights: {"format", "group", "relative_rms", "error_max",
// "saturated"}.
nlohmann::json json_of_quantization(const Q4Error& error);

}  // namespace spillway
