#include "server/start_plan.h"

#include <algorithm>

#include "kernels/base/units.h"
#include "scheduler/planning/hardware_cache.h"
#include "scheduler/planning/machine.h"
#include "scheduler/planning/plan_cost.h"
#include "scheduler/planning/plan_search.h"
#include "server/expected_workload.h"

namespace spillway {

namespace {

bool all_in_place(const EngineFlags& plan) {
  constexpr TierPercent kAll = {100, 0, 0};
  return plan.weights == kAll && plan.kv == kAll;
}

// Makes the plan of an opened model, and keeps what the prediction of it needs.
class StartPlanner {
 public:
  StartPlanner(const EngineFlags& flags, const RuntimeOptions& options,
               std::vector<RequestGroup> workload)
      : flags_(flags), options_(options), workload_(std::move(workload)) {}

  Result<Plan> plan(const OpenedModel& opened) {
    cut_workload(opened.model.shape(), &workload_);
    profile_ = rank_profile(*opened.device, opened.flags.ranks, flags_);
    const PlanMachine machine = machine_of(opened, profile());
    const bool quantized = is_quantized(opened.model.table->format) && profile() != nullptr;
    if (quantized && profile()->compute.in_int8 != opened.device->in_int8(Format::kQ4)) {
      say("warning: this machine's hardware profile was measured when quantised weights were "
          "multiplied otherwise: run " +
          profile_command_text(flags_) + " again, or plans rest on rates that are wrong");
    }
    if (leaves_plan_open(flags_)) {
      if (std::optional<Plan> found = search(opened, machine)) return *std::move(found);
    } else if (unreadable() && machine.device.discrete() && flags_.attention == "auto") {
      warn_of_profile("attention runs on the device");
    }
    return make_plan(opened.model, machine, opened.flags, options_.wishes);
  }

  // The prediction for a plan of this planner's; none without a profile.
  std::optional<Prediction> predict(const Plan& plan) const {
    if (unreadable()) warn_of_profile("no prediction");
    if (profile() == nullptr) return std::nullopt;
    const Result<Prediction> predicted = spillway::predict(plan, *profile(), workload_);
    if (predicted.ok()) return predicted.value();
    say("warning: no prediction: " + std::string(predicted.status().message()));
    return std::nullopt;
  }

  // The bound of its sweeps; none without a profile, or with one that predict() will tell about.
  SweepBound bound(const Plan& plan) const {
    if (profile() == nullptr) return {};
    Result<SweepBound> made = sweep_bound(plan, *profile());
    return made.ok() ? std::move(made).value() : SweepBound();
  }

 private:
  void say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }
  void warn_of_profile(const std::string& effect) const {
    say("warning: " + effect +
        ", since the hardware profile cannot be read: " + std::string(profile_.status().message()));
  }
  // Without a cache folder there is no profile, which is no error.
  bool unreadable() const { return !profile_.ok() && profile_.status().code() != Code::kNotFound; }
  // Null: there is none, or it cannot be read.
  const HardwareProfile* profile() const {
    return profile_.ok() && profile_.value() ? &*profile_.value() : nullptr;
  }

  // The best plan; none: there is no profile to search by, or the search failed, which was
  // reported.
  std::optional<Plan> search(const OpenedModel& opened, const PlanMachine& machine) const {
    if (unreadable()) {
      warn_of_profile("placed by the default heuristic");
      return std::nullopt;
    }
    if (profile() == nullptr) {
      say("Placed by the default heuristic: there is no hardware profile of this machine yet. "
          "Run " +
          profile_command_text(flags_) + " (about a minute) once, and plans are searched for.");
      return std::nullopt;
    }
    PlanQuestion asked;
    asked.flags = opened.flags;
    asked.workload = workload_;
    asked.wishes = options_.wishes;
    asked.lengths_known = options_.wishes.prompt_tokens > 0;
    asked.hardware = profile();
    asked.machine = &machine;
    asked.opened = &opened.model;
    int64_t tried = 0;
    Result<CostedChoice> best = find_plan(asked, &tried);
    if (!best.ok()) {
      // Infeasibility is reported by the default heuristic, with its own message.
      if (best.status().code() != Code::kInfeasible) {
        say("warning: placed by the default heuristic, since the search failed: " +
            std::string(best.status().message()));
      }
      return std::nullopt;
    }
    say("Plan: the best of " + std::to_string(tried) + " for " + workload_text(workload_) + "; " +
        format_rate(best->prediction.tokens_per_second()) + " tokens/s predicted, limited by " +
        std::string(resource_name(best->prediction.bottleneck)));
    const bool any = workload_[0].count == 0 || options_.wishes.may_end_early;
    if (any && all_in_place(best->flags)) {
      EngineFlags larger = best->flags;
      larger.block = std::max(*larger.block, kBlockInPlace);
      Result<Plan> plan = make_plan(opened.model, machine, larger, options_.wishes);
      if (plan.ok()) return std::move(plan).value();
    }
    if (workload_[0].count == 0 && !flags_.prefill_target) {
      best = with_target_for_stream(asked, best.value());
    }
    return *best->plan;
  }

  const EngineFlags& flags_;
  const RuntimeOptions& options_;
  std::vector<RequestGroup> workload_;
  Result<std::optional<HardwareProfile>> profile_ = std::optional<HardwareProfile>();
};

}  // namespace

bool leaves_plan_open(const EngineFlags& flags) {
  return flags.plan.empty() && !flags.weights && !flags.kv && !flags.activations && !flags.block &&
         !flags.micro_batch;
}

Result<StartedRuntime> open_planned(const std::string& model, const EngineFlags& flags,
                                    const RuntimeOptions& options,
                                    std::vector<RequestGroup> workload) {
  StartedRuntime started;
  if (workload.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(started.runtime, Runtime::open(model, flags, options));
    return started;
  }
  StartPlanner planner(flags, options, std::move(workload));
  RuntimeOptions bounded = options;
  bounded.bound = [&](const Plan& plan) { return planner.bound(plan); };
  SPILLWAY_ASSIGN_OR_RETURN(started.runtime,
                            Runtime::open(model, flags, bounded, [&](const OpenedModel& opened) {
                              return planner.plan(opened);
                            }));
  started.predicted = planner.predict(started.runtime->plan());
  return started;
}

}  // namespace spillway
