#include "server/cli/plan/plan.h"

#include "server/runtime.h"

#include <filesystem>
#include <iostream>

#include "offload/config_files.h"
#include "offload/io/file.h"
#include "offload/io/spill_file.h"
#include "policy/rank_hardware.h"
#include "scheduler/planning/hardware_cache.h"
#include "scheduler/planning/machine.h"
#include "scheduler/planning/memory_budget.h"
#include "server/cli/batch/workload_file.h"
#include "server/cli/common/console.h"
#include "server/cli/flags/command_line.h"
#include "server/cli/flags/engine_settings.h"
#include "server/cli/plan/plan_flexgen.h"
#include "server/cli/plan/plan_frontier.h"
#include "server/cli/plan/plan_report.h"
#include "server/cli/plan/plan_simulate.h"
#include "server/cli/plan/plan_stages.h"

namespace spillway {

namespace {

// Rates as `spillway profile` left them; free memory and disk as of now.
Result<HardwareProfile> this_machine(const EngineFlags& engine) {
  SPILLWAY_ASSIGN_OR_RETURN(const auto device, open_device(device_choice(engine)));
  SPILLWAY_ASSIGN_OR_RETURN(auto profile,
                            current_profile(*device, scratch_directories(engine.disk_dirs)));
  if (!profile) {
    return Status(Code::kNotFound, "there is no hardware profile of this machine yet: run " +
                                       profile_command_text(engine) +
                                       " (about a minute), or name one with --hardware");
  }
  return std::move(*profile);
}

Result<HardwareProfile> hardware_of(const PlanFlags& flags, const EngineFlags& engine) {
  if (flags.hardware.empty()) return this_machine(engine);
  auto hardware = find_hardware_profile(flags.hardware);
  const bool int8 = engine.quantized_compute == "int8";
  const bool asked = engine.quantized_compute != "auto";
  if (hardware.ok() && asked && int8 != hardware.value().compute.in_int8) {
    std::cerr << "warning: --hardware " << flags.hardware << " was measured with"
              << (hardware.value().compute.in_int8 ? "" : "out")
              << " 8-bit products: what it says of quantised weights is not for this plan"
              << std::endl;
  }
  return hardware;
}

// Opens the model once, since the first use of a directory packs it: that is reported here once and
// not for every candidate.
Result<OpenedModel> open_once(const std::string& model, const EngineFlags& flags) {
  RuntimeOptions once;
  once.say = say;
  return as_input(open_model(model, flags, once));
}

// Packs the other formats of --search-formats, too.
Status pack_formats(const PlanQuestion& question) {
  const bool checkpoint =
      std::filesystem::is_directory(question.model) || question.model.ends_with(".gguf");
  if (!question.search_formats || question.flags.format || question.flags.dummy_weights ||
      !checkpoint) {
    return {};
  }
  EngineFlags flags = question.flags;
  for (const Format format : kSearchedFormats) {
    flags.format = format;
    SPILLWAY_RETURN_IF_ERROR(open_once(question.model, flags).status());
  }
  return {};
}

// The requests to plan for; opens the model if their file needs it.
Result<std::vector<RequestGroup>> workload_of(const PlanFlags& flags,
                                              const PlanQuestion& question) {
  const bool file = !flags.workload.empty();
  OpenedModel opened;
  ApiContext context;
  ModelShape shape;
  if (!question.flags.dummy_weights) {
    SPILLWAY_ASSIGN_OR_RETURN(opened, open_once(question.model, question.flags));
    context.tokenizer = opened.tokenizer.get();
    context.chat = opened.chat.get();
    context.model_names = {opened.model.name};
    shape = opened.model.shape();
  } else {
    SPILLWAY_ASSIGN_OR_RETURN(shape, find_model_shape(question.model));
    context.model_names = {shape.name};
  }
  if (!file) {
    SPILLWAY_RETURN_IF_ERROR(check_lengths(flags.prompt_tokens, flags.new_tokens, shape));
    return std::vector<RequestGroup>{{flags.prompt_tokens, flags.new_tokens, flags.sequences}};
  }
  context.shape = &shape;
  return read_workload(flags.workload, context);
}

PlanQuestion question_of(const EngineFlags& engine, const std::string& model) {
  PlanQuestion question;
  question.model = model;
  question.flags = engine;
  question.flags.trace.clear();  // --trace is for the simulation
  // A shape's name implies --dummy-weights here.
  question.flags.dummy_weights = engine.dummy_weights || !std::filesystem::exists(model);
  return question;
}

// Of several ranks the first is planned for, which has the most to hold and sets the pace, on its
// share of the machine.
void take_rank(EngineFlags* flags, HardwareProfile* hardware) {
  flags->ranks = flags->rank_count();
  flags->gpus.reset();
  flags->threads /= flags->ranks;
  *hardware = rank_hardware(*hardware, flags->ranks);
}

Status plan(const PlanFlags& flags, const EngineFlags& engine, const std::string& model) {
  SPILLWAY_RETURN_IF_ERROR(check_simulation(flags, engine));
  PlanReport report;
  report.flags = flags;
  SPILLWAY_ASSIGN_OR_RETURN(report.hardware, hardware_of(flags, engine));
  PlanQuestion question = question_of(engine, model);
  if (engine.rank_count() > 1) take_rank(&question.flags, &report.hardware);
  SPILLWAY_ASSIGN_OR_RETURN(report.workload, workload_of(flags, question));
  question.workload = report.workload;
  question.hardware = &report.hardware;
  question.latency_seconds = flags.latency_seconds;
  question.search_formats = flags.search_formats;
  question.frontier = flags.frontier;
  SPILLWAY_RETURN_IF_ERROR(pack_formats(question));
  SPILLWAY_ASSIGN_OR_RETURN(FoundPlans found, find_plans(question));
  report.choice = std::move(found.best);
  report.frontier = std::move(found.frontier);
  report.tried = found.tried;
  if (!flags.output.empty()) {
    SPILLWAY_RETURN_IF_ERROR(write_plan(flags.output, plan_file_text(report)));
  }
  std::string text = flags.json ? plan_report_json(report) + "\n" : plan_text(report);
  if (simulates(flags)) {
    SPILLWAY_RETURN_IF_ERROR(add_simulation(flags, engine, report.choice, report.hardware, &text));
  }
  std::cout << text << std::flush;
  return {};
}

Status plan_staged(const PlanFlags& flags, const EngineFlags& engine, const std::string& model) {
  StagesReport report;
  report.flags = flags;
  report.engine = engine;
  SPILLWAY_ASSIGN_OR_RETURN(report.hardware, hardware_of(flags, engine));
  PlanQuestion question = question_of(engine, model);
  if (engine.rank_count() > 1) take_rank(&question.flags, &report.hardware);
  SPILLWAY_ASSIGN_OR_RETURN(const auto workload, workload_of(flags, question));
  SPILLWAY_RETURN_IF_ERROR(find_stages(model, question.flags, workload, &report));
  std::cout << (flags.json ? stages_json(report) + "\n" : stages_text(report)) << std::flush;
  return {};
}

struct State {
  std::string model;
  PlanFlags flags;
  EngineFlags engine;
};

}  // namespace

Status validate(const PlanFlags& flags) {
  const bool ours = flags.search_formats || flags.latency_seconds > 0 || flags.frontier ||
                    !flags.workload.empty();
  if (flags.cost_model == "flexgen" && ours) {
    return invalid_argument(
        "--latency, --frontier, --search-formats and --workload are answered by "
        "--cost-model spillway");
  }
  if (!flags.workload.empty() && flags.sequences > 0) {
    return invalid_argument("--workload says how many requests there are, and so does --sequences");
  }
  return {};
}

int run_plan(const PlanFlags& flags, const EngineFlags& engine, const std::string& model) {
  if (engine.stages > 1) return report("plan", plan_staged(flags, engine, model));
  if (engine.rank_count() > 1 && flags.cost_model == "flexgen") {
    return report("plan", invalid_argument("--cost-model flexgen knows no --ranks and no --gpus"));
  }
  if (flags.cost_model != "flexgen") return report("plan", plan(flags, engine, model));
  return report("plan", simulates(flags) ? simulate_as_flexgen(flags, engine, model)
                                         : plan_by_flexgen(flags, engine, model));
}

Command plan_command() {
  auto state = std::make_shared<State>();
  Command command;
  command.name = "plan";
  command.summary = "find the fastest plan for a machine and predict what it gives";
  command.description =
      "Searches the block size and what lives on which tier for the highest throughput on requests "
      "of these lengths, and predicts it with rates measured by `spillway profile`. Engine flags "
      "pin what they name. MODEL may be the name of a shape, such as opt-30b. Exit status 3: no "
      "plan fits, or none is within --latency.";
  command.arguments = {{"MODEL", kModelHelp, &state->model}};
  Settings& settings = command.settings;
  settings.group("Planning");
  settings.add_text("hardware", &state->flags.hardware, "FILE",
                    "a hardware profile's file, or the name of one in configs/hardware such as "
                    "t4-16gb (default: this machine's, by `spillway profile`)");
  settings.add_integer("prompt-tokens", &state->flags.prompt_tokens, 1, 1 << 20,
                       "tokens of each prompt");
  settings.add_integer("new-tokens", &state->flags.new_tokens, 1, 1 << 20,
                       "tokens to generate for each");
  settings.add_integer("sequences", &state->flags.sequences, 0, int64_t{1} << 20,
                       "how many in all; 0: one block of the size that is found");
  settings.add_text("workload", &state->flags.workload, "FILE",
                    "plan for these requests instead: JSON Lines of batch, or of "
                    "{\"prompt_tokens\": 300, \"new_tokens\": 40, \"count\": 25}");
  settings.add_real("latency", &state->flags.latency_seconds, 0, 1e9,
                    "the fastest plan of which a full block takes no more than these seconds from "
                    "its start to its last token; 0: no limit");
  settings.add_switch(
      "search-formats", &state->flags.search_formats,
      "look at weights and KV in 8 and 4 bits, too, which change answers; --format and "
      "--kv-format pin theirs");
  settings.add_switch("frontier", &state->flags.frontier,
                      "list the plans that none beats in both throughput and latency; with --json "
                      "scripts/draw_frontier.py draws them");
  settings.add_choice("cost-model", &state->flags.cost_model, {"spillway", "flexgen"},
                      "flexgen: what the released FlexGen would choose and predict, for "
                      "comparison");
  settings.add_switch("explain", &state->flags.explain, "say what lives where, and what limits it");
  settings.add_switch("simulate", &state->flags.simulate,
                      "run the plan's schedule event by event and show its stalls; --trace FILE "
                      "writes the timeline");
  settings.add_integer("cluster", &state->flags.cluster, 0, 1024,
                       "simulate 1 to N such machines, each with a run of the layers; 0: no");
  settings.add_real("cluster-network", &state->flags.cluster_network, 1e-3, 1e4,
                    "GB/s from each machine to the next, also of --stages (1.25: 10 Gbit/s "
                    "Ethernet)");
  settings.add_switch("json", &state->flags.json, "print one JSON object");
  settings.add_text("output", &state->flags.output, "FILE", "write the plan, for --plan");
  add_engine_flags(settings, &state->engine);
  command.check = [state] {
    SPILLWAY_RETURN_IF_ERROR(validate(state->flags));
    const PlanFlags& flags = state->flags;
    const bool others = flags.cost_model != "spillway" || simulates(flags) || flags.frontier ||
                        flags.search_formats || flags.latency_seconds > 0 || !flags.output.empty();
    if (state->engine.stages > 1 && others) {
      return invalid_argument(
          "--stages finds the layers and the block of each of several machines; --cost-model, "
          "--simulate, --cluster, --frontier, --search-formats, --latency and --output are of one");
    }
    return validate(state->engine);
  };
  command.run = [state] { return run_plan(state->flags, state->engine, state->model); };
  return command;
}

}  // namespace spillway
