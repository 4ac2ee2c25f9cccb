#include "server/cli/plan/plan_flexgen.h"

#include <cmath>
#include <cstdio>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/units.h"
#include "offload/config_files.h"
#include "offload/io/file.h"
#include "policy/flexgen/flexgen_search.h"
#include "scheduler/planning/plan_json.h"
#include "server/cli/batch/workload_file.h"

namespace spillway {

namespace {

using nlohmann::json;

FlexgenPins::Kind pins_of(const std::optional<TierPercent>& percent) {
  if (!percent) return {};
  return {(*percent)[0] / 100.0, (*percent)[1] / 100.0};
}

Status check(const EngineFlags& engine) {
  if (engine.block && !engine.micro_batch) {
    return invalid_argument(
        "--cost-model flexgen needs --micro-batch with --block: its blocks are "
        "whole micro-batches");
  }
  if (engine.block && *engine.block % *engine.micro_batch != 0) {
    return invalid_argument("--cost-model flexgen: --block " + std::to_string(*engine.block) +
                            " is not a multiple of --micro-batch " +
                            std::to_string(*engine.micro_batch));
  }
  if (engine.kv_rule != "full") {
    return invalid_argument("--cost-model flexgen knows no KV rule but full");
  }
  if (engine.activations && (*engine.activations)[2] > 0) {
    return invalid_argument("--cost-model flexgen has no activations on disk; --activations D,H,0");
  }
  return {};
}

Result<FlexgenChoice> choose(const FlexgenProblem& problem, const EngineFlags& engine) {
  if (engine.block && engine.weights && engine.kv && engine.activations) {
    FlexgenChoice choice;
    choice.block = {*engine.micro_batch, *engine.block / *engine.micro_batch};
    choice.placement = {shares_of(*engine.weights), shares_of(*engine.kv),
                        shares_of(*engine.activations)};
    choice.cost = flexgen_cost(problem, choice.block, choice.placement);
    return choice;
  }
  FlexgenSearch search;
  search.pins = {pins_of(engine.weights), pins_of(engine.kv), pins_of(engine.activations)};
  const auto budget = [](const std::optional<uint64_t>& flag, double otherwise) {
    return flag ? static_cast<double>(*flag) : otherwise;
  };
  search.limits.memory_bytes = {budget(engine.device_memory_bytes, problem.hardware.device_memory),
                                budget(engine.host_memory_bytes, problem.hardware.host_memory),
                                budget(engine.disk_memory_bytes, problem.hardware.disk_memory)};
  if (engine.micro_batch) search.micro_batch = *engine.micro_batch;
  if (engine.block) search.micro_batches = *engine.block / *engine.micro_batch;
  return flexgen_search(problem, search);
}

TierPercent percent_of(const PerTier& shares) {
  return percent_of(TierShares{shares.device, shares.host, shares.disk});
}

json tier_object(const PerTier& shares, double bytes) {
  const auto part = [&](double share) {
    return static_cast<uint64_t>(std::llround(share * bytes));
  };
  return {
      {"device", part(shares.device)}, {"host", part(shares.host)}, {"disk", part(shares.disk)}};
}

// The choice as a plan of our engine.
Plan plan_of(const FlexgenProblem& problem, const FlexgenChoice& choice) {
  Plan plan;
  plan.model_name = problem.shape.name;
  plan.discrete = true;
  plan.format = problem.compressed_weights ? Format::kQ4 : Format::kF16;
  plan.engine.kv_format = Format::kF16;
  plan.percent = {percent_of(choice.placement.weights), percent_of(choice.placement.cache),
                  percent_of(choice.placement.hidden)};
  plan.scheduling.block_sequences_max = choice.block.sequences();
  plan.engine.micro_batch_sequences = choice.block.micro_batch;
  return plan;
}

// Busy seconds of the whole run.
json resources(const FlexgenProblem& problem, const FlexgenCost& cost) {
  const auto layers = static_cast<double>(problem.shape.layers);
  const auto all = [&](double FlexgenCost::Step::*time) {
    return layers *
           (cost.prefill.*time + cost.decode.*time * static_cast<double>(problem.new_tokens - 1));
  };
  using Step = FlexgenCost::Step;
  return {{"host to device", all(&Step::host_to_device)},
          {"device to host", all(&Step::device_to_host)},
          {"disk read", all(&Step::disk_to_host)},
          {"disk write", all(&Step::host_to_disk)},
          {"compute", all(&Step::device_compute)},
          {"host compute", all(&Step::host_compute)}};
}

std::string json_text(const FlexgenProblem& problem, const FlexgenChoice& choice) {
  const FlexgenCost& cost = choice.cost;
  const ModelShape& shape = problem.shape;
  const auto hidden = static_cast<double>(shape.hidden), layers = static_cast<double>(shape.layers);
  const auto sequences = static_cast<double>(choice.block.sequences());
  const auto prompt = static_cast<double>(problem.prompt_tokens);
  const double weights =
      layers * (8 * hidden * hidden + 4 * hidden * static_cast<double>(shape.mlp));
  const double kv = 4 * (prompt + static_cast<double>(problem.new_tokens)) * hidden * sequences;
  const json object = {
      {"plan", plan_json(plan_of(problem, choice))},
      {"predicted",
       {{"prefill_seconds", cost.prefill_seconds},
        {"decode_seconds", cost.decode_seconds},
        {"total_seconds", cost.total_seconds},
        {"tokens_per_second", cost.tokens_per_second},
        {"bytes_by_tier",
         {{"weights", tier_object(choice.placement.weights, weights)},
          {"kv", tier_object(choice.placement.cache, kv * layers)},
          {"activations", tier_object(choice.placement.hidden, 2 * prompt * hidden * sequences)}}},
        {"resources", resources(problem, cost)}}},
      {"prompt_tokens", problem.prompt_tokens},
      {"new_tokens", problem.new_tokens},
      {"cost_model", "flexgen"},
      {"hardware", {{"name", problem.hardware.name}, {"source", problem.hardware.source}}}};
  return object.dump(2) + "\n";
}

std::string text_of(const FlexgenProblem& problem, const FlexgenChoice& choice) {
  const auto percent = [](const PerTier& shares) { return percent_text(percent_of(shares)); };
  char speed[64];
  std::snprintf(speed, sizeof(speed), "%.4g", choice.cost.tokens_per_second);
  return problem.shape.name + " on " + problem.hardware.name + ", " +
         std::to_string(problem.prompt_tokens) + " + " + std::to_string(problem.new_tokens) +
         " tokens: FlexGen's model predicts " + speed + " tokens/s (prefill " +
         format_seconds(choice.cost.prefill_seconds) + ", decode " +
         format_seconds(choice.cost.decode_seconds) + ")\n  --micro-batch " +
         std::to_string(choice.block.micro_batch) + " --block " +
         std::to_string(choice.block.sequences()) + " --weights " +
         percent(choice.placement.weights) + " --kv " + percent(choice.placement.cache) +
         " --activations " + percent(choice.placement.hidden) + "\n";
}

}  // namespace

Status write_plan(const std::string& path, const std::string& text) {
  return replace_file(path, text).at("--output");
}

Status plan_by_flexgen(const PlanFlags& flags, const EngineFlags& engine,
                       const std::string& model) {
  SPILLWAY_RETURN_IF_ERROR(check(engine));
  FlexgenProblem problem;
  SPILLWAY_ASSIGN_OR_RETURN(problem.shape, find_model_shape(model));
  SPILLWAY_ASSIGN_OR_RETURN(
      problem.hardware,
      find_flexgen_hardware(flags.hardware.empty() ? kFlexgenHardwareName : flags.hardware));
  SPILLWAY_RETURN_IF_ERROR(check_lengths(flags.prompt_tokens, flags.new_tokens, problem.shape));
  problem.prompt_tokens = flags.prompt_tokens;
  problem.new_tokens = flags.new_tokens;
  problem.compressed_weights = engine.format && is_quantized(*engine.format);
  SPILLWAY_RETURN_IF_ERROR(validate(problem));
  SPILLWAY_ASSIGN_OR_RETURN(const FlexgenChoice choice, choose(problem, engine));
  if (!flags.output.empty()) {
    SPILLWAY_RETURN_IF_ERROR(
        write_plan(flags.output, plan_json(plan_of(problem, choice)).dump(2) + "\n"));
  }
  std::cout << (flags.json ? json_text(problem, choice) : text_of(problem, choice)) << std::flush;
  return {};
}

PerTier shares_of(const TierPercent& percent) {
  return {percent[0] / 100.0, percent[1] / 100.0, percent[2] / 100.0};
}

}  // namespace spillway
