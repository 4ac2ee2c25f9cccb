#include "server/commands/plan.h"

#include <filesystem>
#include <iostream>

#include "offload/file.h"
#include "offload/hardware_catalog.h"
#include "offload/spill_file.h"
#include "server/commands/plan_flexgen.h"
#include "server/commands/plan_report.h"
#include "server/config/command_line.h"
#include "server/hardware_cache.h"
#include "server/machine.h"
#include "server/memory_budget.h"

namespace spillway {

namespace {

// Rates as `spillway profile` left them; memory and disk as they are now.
Result<HardwareProfile> this_machine(const EngineFlags& engine) {
  SPILLWAY_ASSIGN_OR_RETURN(const auto device,
                            open_device(engine.device, engine.gpu, engine.threads));
  SPILLWAY_ASSIGN_OR_RETURN(auto profile,
                            current_profile(*device, scratch_directory(engine.disk_dir)));
  if (!profile) {
    return Status(Code::kNotFound,
                  "there is no hardware profile of this machine yet: run `spillway profile` (about "
                  "a minute), or name one with --hardware");
  }
  return std::move(*profile);
}

Result<HardwareProfile> hardware_of(const PlanFlags& flags, const EngineFlags& engine) {
  return flags.hardware.empty() ? this_machine(engine) : find_hardware_profile(flags.hardware);
}

Status plan(const PlanFlags& flags, const EngineFlags& engine, const std::string& model) {
  if (!engine.trace.empty()) {
    return invalid_argument(
        "--trace: a plan runs nothing that could be traced; give it to the "
        "command that carries the plan out");
  }
  PlanReport report;
  report.flags = flags;
  SPILLWAY_ASSIGN_OR_RETURN(report.hardware, hardware_of(flags, engine));
  PlanQuestion question;
  question.model = model;
  question.flags = engine;
  // A shape's name needs no flag here.
  question.flags.dummy_weights = engine.dummy_weights || !std::filesystem::exists(model);
  if (!question.flags.dummy_weights) {
    // The first use of a directory packs it, which is said once and not for every candidate.
    RuntimeOptions once;
    once.tokenizer_only = true;
    once.say = [](const std::string& line) { std::cerr << line << std::endl; };
    SPILLWAY_RETURN_IF_ERROR(Runtime::open(model, engine, once).status());
  }
  question.workload = {{flags.prompt_tokens, flags.new_tokens, flags.sequences}};
  question.hardware = &report.hardware;
  SPILLWAY_ASSIGN_OR_RETURN(report.choice, find_plan(question, &report.tried));
  if (!flags.output.empty()) {
    SPILLWAY_RETURN_IF_ERROR(write_plan(flags.output, plan_file_text(report)));
  }
  std::cout << (flags.json ? plan_json(report) + "\n" : plan_text(report)) << std::flush;
  return {};
}

}  // namespace

int run_plan(const PlanFlags& flags, const EngineFlags& engine, const std::string& model) {
  return report("plan", flags.cost_model == "flexgen" ? plan_by_flexgen(flags, engine, model)
                                                      : plan(flags, engine, model));
}

}  // namespace spillway
