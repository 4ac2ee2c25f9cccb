// `spillway plan --cost-model flexgen`: the released FlexGen's choice and prediction, for
// comparison with ours.
#pragma once

#include <string>

#include "kernels/base/status.h"
#include "policy/flexgen/flexgen_cost.h"
#include "server/cli/plan/plan.h"

namespace spillway {

// Prints like `plan`. With micro-batch, block and all shares pinned the plan is only evaluated,
// without memory limits, since the model's peaks are estimates. kInfeasible: nothing fits.
Status plan_by_flexgen(const PlanFlags& flags, const EngineFlags& engine, const std::string& model);

// Writes the plan's file, replaced whole. Errors name the flag.
Status write_plan(const std::string& path, const std::string& text);

// Shares of 1 from per cents.
PerTier shares_of(const TierPercent& percent);

}  // namespace spillway
