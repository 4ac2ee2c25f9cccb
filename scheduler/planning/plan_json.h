// The one written form of a plan: the JSON object that `plan --output`, `plan --json`,
// `bench --json` and `serve` write and `--plan` reads, and the same plan as flags. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "scheduler/planning/plan.h"

namespace spillway {

constexpr int kPlanVersion = 1;

// {"version": 1, "model": ..., "device": "cpu", "weights": [20, 0, 80], "block": 96, ...}. Besides
// version and model each member is an engine flag by its name, with '_' for '-'.
nlohmann::json plan_json(const Plan& plan);

// "--block 96 --weights 20,0,80 ...": the flags that carry the plan out from a command line.
std::string plan_flags_text(const Plan& plan);

// Sets kv_rule, kv_heavy, kv_recent, kv_sink and kv_ratio_of in `object`, a report with all of
// them. First positions that are not a window's plain number of them are kv_keep; snap has
// kv_snap, too.
void add_kv_rule(const KvRule& rule, nlohmann::json* object);

}  // namespace spillway
