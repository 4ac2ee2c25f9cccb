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
std::string identity_of(const std::string& source, const std::string& weights, Format kv,
                        bool int8) {
  return source + " " + weights + "/" + std::string(format_name(kv)) + (int8 ? " int8" : "");
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
  all.push_back({"device", "staging", plan.placement.device_rings.sum()});
  all.push_back({"host", "staging", plan.placement.host_rings.sum()});
  return all;
}

ApiContext context_of(const ModelShape& shape, const std::string& name, const Tokenizer* tokenizer,
                      const std::string& tokenizer_error, const ChatTemplate* chat) {
  ApiContext context;
  context.shape = &shape;
  context.tokenizer = tokenizer;
  context.tokenizer_error = tokenizer_error;
  context.chat = chat;
  context.model_names = {name};
  context.created = static_cast<int64_t>(std::time(nullptr));
  context.fingerprint = "spillway-" SPILLWAY_VERSION;
  return context;
}

// Without weights. The KV format is a plan's; the identity has float32 in its place, as in the
// journals that batch runs have left.
ServedModel view_of(OpenedModel opened) {
  struct Kept {
    ModelShape shape;
    std::unique_ptr<Tokenizer> tokenizer;
    std::unique_ptr<ChatTemplate> chat;
  };
  const ModelToPlan& model = opened.model;
  auto kept = std::make_shared<Kept>(
      Kept{model.shape(), std::move(opened.tokenizer), std::move(opened.chat)});
  ServedModel view;
  view.context = context_of(kept->shape, model.name, kept->tokenizer.get(), opened.tokenizer_error,
                            kept->chat.get());
  view.identity = identity_of(model.source, model.table->formats_text(), Format::kF32, false);
  view.owner = std::move(kept);
  return view;
}

ServedModel view_of(std::shared_ptr<Runtime> runtime) {
  const Plan& plan = runtime->plan();
  ServedModel view;
  view.context = context_of(runtime->shape(), runtime->model_name(), runtime->tokenizer(),
                            runtime->tokenizer_error(), runtime->chat());
  view.context.kv_rule = plan.kv_rule();
  view.identity =
      identity_of(runtime->source(), plan.formats_text(), plan.kv_format(), plan.in_int8);
  view.format = plan.in_named_format ? std::string(format_name(plan.format)) : plan.formats_text();
  view.kv_format = format_name(plan.kv_format());
  view.block = plan.block_sequences();
  view.scheduler = &runtime->scheduler();
  view.tier_bytes = amounts_of(plan);
  view.requests = plan.requests;
  view.plan = plan_json(plan).dump();
  view.timeline = runtime->timeline();
  view.owner = std::move(runtime);
  return view;
}

}  // namespace

OpenModel model_opener() {
  return [](const std::string& model, const EngineFlags& flags,
            const OpenFor& purpose) -> Result<ServedModel> {
    RuntimeOptions options;
    options.wishes.requests = purpose.requests;
    options.wishes.may_end_early = !purpose.workload.empty();
    options.accepts_source = purpose.accepts_source;
    options.timeline = purpose.timeline;
    options.say = [](const std::string& line) { log_info(line); };
    if (purpose.tokenizer_only) {
      SPILLWAY_ASSIGN_OR_RETURN(OpenedModel opened, open_model(model, flags, options));
      return view_of(std::move(opened));
    }
    if (purpose.stages != nullptr) {
      SPILLWAY_ASSIGN_OR_RETURN(StartedStages started, open_stages(*purpose.stages, model, flags,
                                                                   options, purpose.workload));
      log_info(plan_line(*started.runtime));
      ServedModel served = view_of(std::move(started.runtime));
      if (started.predicted) {
        served.predicted_tokens_per_second = started.predicted->tokens_per_second();
      }
      return served;
    }
    SPILLWAY_ASSIGN_OR_RETURN(StartedRuntime started,
                              open_planned(model, flags, options, purpose.workload));
    log_info(plan_line(*started.runtime));
    ServedModel served = view_of(std::move(started.runtime));
    if (started.predicted) {
      served.predicted_tokens_per_second = started.predicted->tokens_per_second();
    }
    return served;
  };
}

}  // namespace spillway
