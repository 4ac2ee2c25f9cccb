// `spillway plan --cost-model flexgen`: what the released FlexGen would choose and predict, to be
// set beside ours.
#pragma once

#include <string>

#include "kernels/base/status.h"
#include "server/cli/plan/plan.h"

namespace spillway {

// Prints like `plan`. With micro-batch, block and all shares pinned the plan is only evaluated, and
// memory is no limit: the model guesses peaks. kInfeasible: nothing fits.
Status plan_by_flexgen(const PlanFlags& flags, const EngineFlags& engine, const std::string& model);

// The plan's file, replaced whole. Errors name the flag.
Status write_plan(const std::string& path, const std::string& text);

}  // namespace spillway
