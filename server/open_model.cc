#include "server/open_model.h"

#include <ctime>
#include <iostream>

#include "offload/model_catalog.h"
#include "server/start_plan.h"

namespace spillway {

namespace {

void say(const std::string& line) {
  std::cerr << line << std::endl;
}

// What differs whenever answers may differ: the checkpoint's fingerprint and the number formats.
std::string identity_of(const std::string& source, const RuntimePlan& plan) {
  return source + " " + std::string(dtype_name(plan.format)) + "/" +
         std::string(dtype_name(plan.kv_format)) + (plan.q4_in_int8 ? " int8" : "");
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
  model.scheduler = runtime->plan().block_sequences > 0 ? &runtime->scheduler() : nullptr;
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
    question.options.say = say;
    question.options.tokenizer_only = purpose.tokenizer_only;
    question.workload = purpose.workload;
    SPILLWAY_ASSIGN_OR_RETURN(StartedRuntime started, open_planned(question));
    if (!purpose.tokenizer_only) say(plan_line(*started.runtime));
    ServedModel served = view_of(std::move(started.runtime));
    if (started.predicted) {
      served.predicted_tokens_per_second = started.predicted->tokens_per_second();
    }
    return served;
  };
}

}  // namespace spillway
