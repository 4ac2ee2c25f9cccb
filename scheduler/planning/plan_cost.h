// The cost model's view of a plan and of a workload's cache. Pure functions.
#pragma once

#include <span>
#include <vector>

#include "policy/cost_model.h"
#include "scheduler/planning/plan.h"
#include "scheduler/sweep_count.h"

namespace spillway {

CostedPlan costed_plan(const Plan& plan, std::span<const RequestGroup> workload);

// The plan as the bound of sweeps that ran takes it (policy/bound.h): they bring their own rows and
// bytes.
CostedPlan bounded_plan(const Plan& plan);

// The least time of a sweep under the plan at a profile's rates, for the statistics of a run.
// kInvalidArgument: the profile lacks a figure that the plan needs.
Result<SweepBound> sweep_bound(const Plan& plan, const HardwareProfile& hardware);

// The sweeps of a workload under the plan; a group without a count stands for one block of its
// requests. kInfeasible: a sequence's cache does not fit.
Result<std::vector<PlannedSweeps>> planned_sweeps(const Plan& plan,
                                                  std::span<const RequestGroup> workload);

// `count` of a workload's requests, picked evenly in order. REQUIRES: it has more, and knows how
// many.
std::vector<RequestGroup> thinned(std::span<const RequestGroup> workload, int64_t count);

// The sweeps of one full block of the workload's requests, or of all of them if fewer: as many as
// the plan's block and its cache hold, picked evenly from the longest down, the longest always
// among them. Their time is the plan's latency: the seconds from the start of a full block to its
// last token (FlexGen, arXiv 2303.06865, section 4). Errors as in planned_sweeps().
Result<std::vector<PlannedSweeps>> planned_block(const Plan& plan,
                                                 std::span<const RequestGroup> workload);

// Bytes of KV cache for a full block of the workload's largest requests.
uint64_t kv_bytes_wanted(const Plan& plan, std::span<const RequestGroup> workload);

// The residual stream's rows, in bytes: all that a sweep can have, and those of one micro-batch.
struct ResidualRows {
  uint64_t sweep_bytes = 0, micro_batch_bytes = 0;
};
ResidualRows residual_rows(const Plan& plan);

// Predicts the workload's run under the plan.
Result<Prediction> predict(const Plan& plan, const HardwareProfile& hardware,
                           std::span<const RequestGroup> workload);

}  // namespace spillway
