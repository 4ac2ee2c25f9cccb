#include "server/cli/common/served_model.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "offload/config_files.h"
#include "scheduler/planning/plan_json.h"
#include "server/log.h"
#include "server/start_plan.h"

namespace spillway {

namespace {

// Changes whenever answers may: the checkpoint's fingerprint and the number formats.
std::string identity_of(const std::string& source, const Plan& plan) {
  return source + " " + std::string(format_name(plan.format)) + "/" +
         std::string(format_name(plan.kv_format)) + (plan.q4_in_int8 ? " int8" : "");
}

// The plan's bytes by tier and kind.
std::vector<TierAmount> amounts_of(const Plan& plan) {
  std::vector<TierAmount> all;
  const auto add = [&](const char* kind, const TierBytes& bytes) {
    all.push_back({"device", kind, bytes.device});
    all.push_back({"host", kind, bytes.host});
    all.push_back({"disk", kind, bytes.disk});
  };
  add("weights", plan.weights);
  add("kv", plan.kv);
  add("activations", plan.activations);
  all.push_back({"device", "staging", plan.device_staging_bytes});
  all.push_back({"host", "staging", plan.staging_bytes});
  return all;
}

ServedModel view_of(std::shared_ptr<Runtime> runtime) {
  ServedModel model;
  model.context.shape = &runtime->shape();
  model.context.tokenizer = runtime->tokenizer();
  model.context.model_names = {runtime->model_name()};
  model.context.created = static_cast<int64_t>(std::time(nullptr));
  model.identity = identity_of(runtime->source(), runtime->plan());
  model.context.kv_rule = runtime->plan().kv_rule;
  model.context.fingerprint = "spillway-" SPILLWAY_VERSION;
  if (runtime->plan().block_sequences > 0) {
    model.scheduler = &runtime->scheduler();
    model.tier_bytes = amounts_of(runtime->plan());
    model.requests = runtime->plan().requests;
    model.plan = plan_json(runtime->plan()).dump();
  }
  model.owner = std::move(runtime);
  return model;
}

}  // namespace

OpenModel model_opener() {
  return [](const std::string& model, const EngineFlags& flags,
            const OpenFor& purpose) -> Result<ServedModel> {
    StartQuestion question;
    question.model = model;
    question.flags = question.unplanned = flags;
    question.options.say = [](const std::string& line) { log_info(line); };
    question.options.tokenizer_only = purpose.tokenizer_only;
    question.workload = purpose.workload;
    question.options.wishes.requests = purpose.requests;
    question.options.accepts_source = purpose.accepts_source;
    SPILLWAY_ASSIGN_OR_RETURN(StartedRuntime started, open_planned(question));
    if (!purpose.tokenizer_only) log_info(plan_line(*started.runtime));
    ServedModel served = view_of(std::move(started.runtime));
    if (started.predicted) {
      served.predicted_tokens_per_second = started.predicted->tokens_per_second();
    }
    return served;
  };
}

}  // namespace spillway
