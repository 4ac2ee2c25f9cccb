#include "server/start_plan.h"

#include <algorithm>

#include "kernels/base/units.h"
#include "scheduler/planning/hardware_cache.h"
#include "scheduler/planning/machine.h"
#include "scheduler/planning/plan_cost.h"
#include "scheduler/planning/plan_search.h"

namespace spillway {

namespace {

void cut_to(const ModelShape& shape, std::vector<RequestGroup>* workload) {
  for (RequestGroup& group : *workload) {
    group.prompt_tokens = std::clamp<int64_t>(group.prompt_tokens, 1, shape.positions - 1);
    group.new_tokens =
        std::clamp<int64_t>(group.new_tokens, 1, shape.positions - group.prompt_tokens);
  }
}

// "64 sequences of 512 + 128 tokens", with means for mixed lengths; "full blocks of ..." where the
// number is open.
std::string text_of(std::span<const RequestGroup> workload) {
  int64_t count = 0, prompt = 0, more = 0;
  bool alike = true;
  for (const RequestGroup& group : workload) {
    const int64_t weight = std::max<int64_t>(1, group.count);
    count += group.count;
    prompt += weight * group.prompt_tokens;
    more += weight * group.new_tokens;
    alike = alike && group.prompt_tokens == workload[0].prompt_tokens &&
            group.new_tokens == workload[0].new_tokens;
  }
  const int64_t all = std::max<int64_t>(1, count);
  return (count == 0   ? std::string("full blocks of sequences of ")
          : count == 1 ? std::string("a sequence of ")
                       : std::to_string(count) + " sequences of ") +
         std::to_string(prompt / all) + " + " + std::to_string(more / all) + " tokens" +
         (alike ? "" : " in the mean");
}

// If nothing is offloaded, a larger block costs nothing, and requests shorter than expected fill
// it.
constexpr int64_t kBlockInPlace = 256;

bool all_in_place(const EngineFlags& plan) {
  constexpr TierPercent kAll = {100, 0, 0};
  return plan.weights == kAll && plan.kv == kAll;
}

class Starter {
 public:
  explicit Starter(const StartQuestion& question)
      : question_(question), workload_(question.workload) {}

  Result<StartedRuntime> open() {
    StartedRuntime started;
    if (workload_.empty()) {
      SPILLWAY_ASSIGN_OR_RETURN(started.runtime, open(question_.unplanned));
      return started;
    }
    if (leaves_plan_open(question_.flags)) {
      SPILLWAY_ASSIGN_OR_RETURN(const std::optional<EngineFlags> found, search());
      if (found) {
        Result<std::unique_ptr<Runtime>> runtime = open(*found);
        if (!runtime.ok() && runtime.status().code() != Code::kInfeasible) return runtime.status();
        if (runtime.ok()) started.runtime = std::move(runtime).value();
        // Other programs took memory meanwhile.
        if (!runtime.ok()) say("The plan does not fit any more; placed by the default heuristic.");
      }
    }
    if (started.runtime == nullptr) {
      SPILLWAY_ASSIGN_OR_RETURN(started.runtime, open(question_.unplanned));
    }
    cut_to(started.runtime->shape(), &workload_);
    const auto predicted = predict_here(*started.runtime, question_.flags, workload_);
    if (predicted.ok()) started.predicted = predicted.value();
    if (!predicted.ok()) {
      say("warning: no prediction: " + std::string(predicted.status().message()));
    }
    return started;
  }

 private:
  void say(const std::string& line) const {
    if (question_.options.say) question_.options.say(line);
  }

  Result<std::unique_ptr<Runtime>> open(const EngineFlags& flags) const {
    return Runtime::open(question_.model, flags, question_.options);
  }

  // The flags of the best plan; none: there is no profile to search by, which was reported. Errors
  // are the model's.
  Result<std::optional<EngineFlags>> search() {
    std::optional<EngineFlags> none;
    const EngineFlags& flags = question_.flags;
    SPILLWAY_ASSIGN_OR_RETURN(const auto device, open_device(device_choice(flags)));
    const auto profile = current_profile(*device, scratch_directory(flags.disk_dir));
    if (!profile.ok() && profile.status().code() != Code::kNotFound) {
      say("warning: placed by the default heuristic, since the hardware profile cannot be read: " +
          std::string(profile.status().message()));
      return none;
    }
    if (!profile.ok() || !profile.value()) {
      say("Placed by the default heuristic: there is no hardware profile of this machine yet. "
          "Run " +
          profile_command_text(flags) + " (about a minute) once, and plans are searched for.");
      return none;
    }
    // The first use of a directory packs it; report that once and not for every candidate.
    RuntimeOptions once;
    once.tokenizer_only = true;
    once.say = question_.options.say;
    EngineFlags untraced = flags;
    untraced.trace.clear();
    SPILLWAY_ASSIGN_OR_RETURN(const auto model, Runtime::open(question_.model, untraced, once));
    cut_to(model->shape(), &workload_);

    PlanQuestion asked;
    asked.model = question_.model;
    asked.flags = untraced;
    asked.workload = workload_;
    asked.lengths_known = question_.options.wishes.prompt_tokens > 0;
    asked.hardware = &*profile.value();
    asked.prefill_tokens = question_.options.wishes.prefill_tokens_max;
    asked.requests = question_.options.wishes.requests;
    int64_t tried = 0;
    const Result<CostedChoice> best = find_plan(asked, &tried);
    if (!best.ok()) {
      // Infeasibility is reported by open(), with its own message.
      if (best.status().code() != Code::kInfeasible) {
        say("warning: placed by the default heuristic, since the search failed: " +
            std::string(best.status().message()));
      }
      return none;
    }
    say("Plan: the best of " + std::to_string(tried) + " for " + text_of(workload_) + "; " +
        format_rate(best->prediction.tokens_per_second()) + " tokens/s predicted, limited by " +
        std::string(resource_name(best->prediction.bottleneck)));
    EngineFlags found = best->flags;
    found.trace = flags.trace;
    if (workload_[0].count == 0 && all_in_place(found)) {
      found.block = std::max(*found.block, kBlockInPlace);
    }
    return std::optional<EngineFlags>(std::move(found));
  }

  const StartQuestion& question_;
  std::vector<RequestGroup> workload_;
};

}  // namespace

bool leaves_plan_open(const EngineFlags& flags) {
  return flags.plan.empty() && !flags.weights && !flags.kv && !flags.activations && !flags.block &&
         !flags.micro_batch;
}

Result<StartedRuntime> open_planned(const StartQuestion& question) {
  return Starter(question).open();
}

Result<std::optional<Prediction>> predict_here(Runtime& runtime, const EngineFlags& flags,
                                               std::span<const RequestGroup> workload) {
  const auto cached = cached_profile(runtime.device(), scratch_directory(flags.disk_dir));
  if (cached.status().code() == Code::kNotFound) return std::optional<Prediction>();
  SPILLWAY_RETURN_IF_ERROR(cached.status());
  const std::optional<HardwareProfile>& profile = cached.value();
  if (!profile) return std::optional<Prediction>();
  SPILLWAY_ASSIGN_OR_RETURN(Prediction found, predict(runtime.plan(), *profile, workload));
  return std::optional<Prediction>(found);
}

}  // namespace spillway
