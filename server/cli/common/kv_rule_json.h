// A KV rule in the JSON of `bench` and `eval`: kv_rule, kv_heavy, kv_recent, kv_sink, kv_ratio_of.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "policy/kv_rule.h"

namespace spillway {

void add_kv_rule(const KvRule& rule, nlohmann::json* object);

}  // namespace spillway
