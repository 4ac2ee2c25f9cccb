// The command lines of `spillway bench`, `spillway eval` and `spillway plan`.
#include "server/cli/measure_commands.h"

#include <charconv>
#include <memory>
#include <vector>

#include "server/cli/bench/bench.h"
#include "server/cli/eval/eval.h"
#include "server/cli/flags/engine_settings.h"
#include "server/cli/plan/plan.h"

namespace spillway {

namespace {

template <class Flags>
struct State {
  std::string model;
  Flags flags;
  EngineFlags engine;
};

constexpr size_t kBudgetsMax = 32;

constexpr const char* kModelHelp =
    "a Hugging Face model directory or a packed .spill file; with --dummy-weights the name of a "
    "shape such as opt-1.3b";

Result<std::vector<int>> parse_percents(const std::string& text) {
  std::vector<int> percents;
  const char* at = text.data();
  const char* end = at + text.size();
  while (percents.size() < kBudgetsMax) {
    int percent = 0;
    const auto [rest, error] = std::from_chars(at, end, percent);
    if (error != std::errc() || percent < 1 || percent > 100) break;
    percents.push_back(percent);
    if (rest == end) return percents;
    if (*rest != ',') break;
    at = rest + 1;
  }
  return invalid_argument("must be up to 32 per cents between 1 and 100: 60,40,20");
}

}  // namespace

Command bench_command() {
  auto state = std::make_shared<State<BenchFlags>>();
  Command command;
  command.name = "bench";
  command.summary = "time a block of equal sequences against this machine's bound";
  command.description =
      "Runs a block of equal sequences and prints tokens/s, beside bounds of the time from rates "
      "measured in the same process: the peaks of this CPU's instructions, memory, disk and link "
      "(efficiency), and the matrix products and attention of our own kernels (of our kernels). "
      "Efficiency is bound over measured time; the bound takes each sweep's slowest resource, and "
      "a second one, which no schedule can beat, the slowest resource of the whole run.";
  command.arguments = {{"MODEL", kModelHelp, &state->model}};
  Settings& settings = command.settings;
  settings.group("Benchmark");
  settings.add_integer("prompt-tokens", &state->flags.prompt_tokens, 1, 1 << 20,
                       "tokens of each prompt");
  settings.add_integer("new-tokens", &state->flags.new_tokens, 1, 1 << 20,
                       "tokens to generate for each");
  settings.add_integer("sequences", &state->flags.sequences, 0, 65536,
                       "how many at once; 0: as many as the block and the KV cache hold");
  settings.add_integer("decode-steps", &state->flags.decode_steps, 0, 1 << 20,
                       "stop after so many decode steps of the whole block and project the rest "
                       "from them; 0: run all");
  settings.add_switch("json", &state->flags.json, "print one JSON object");
  settings.add_switch("check", &state->flags.check,
                      "exit with 1 where the run beat a bound, which makes its efficiency invalid, "
                      "or a kernel is below its least share of what the hardware gives");
  add_engine_flags(settings, &state->engine);
  command.check = [state] { return validate(state->engine); };
  command.run = [state] { return run_bench(state->flags, state->engine, state->model); };
  return command;
}

Command eval_command() {
  auto state = std::make_shared<State<EvalFlags>>();
  Command command;
  command.name = "eval";
  command.summary = "perplexity of a text, scored through the decode path";
  command.description =
      "Cuts a text into windows of --context tokens. The first --prompt-tokens of each are the "
      "prompt, the rest is scored token by token through the decode path, as in generation.";
  command.arguments = {{"MODEL", kModelHelp, &state->model}};
  Settings& settings = command.settings;
  settings.group("Evaluation");
  settings.add_text("text", &state->flags.text, "FILE", "the text, UTF-8");
  settings.add_integer("context", &state->flags.context, 2, 1 << 20, "tokens of a window");
  settings.add_integer("prompt-tokens", &state->flags.prompt_tokens, 1, 1 << 20,
                       "of them, in the prompt and not scored");
  settings.add_integer("windows", &state->flags.windows, 0, int64_t{1} << 40,
                       "at most this many; 0: the whole text");
  settings.add({"kv-budgets", "P,P,...",
                "compare the KV rules h2o and window at these per cents of the positions", "", "",
                [state](const std::string& text) -> Status {
                  SPILLWAY_ASSIGN_OR_RETURN(state->flags.kv_budgets, parse_percents(text));
                  return {};
                }});
  settings.add_switch("json", &state->flags.json, "print one JSON object");
  add_engine_flags(settings, &state->engine);
  command.check = [state]() -> Status {
    if (state->flags.text.empty()) return invalid_argument("--text is missing");
    return validate(state->engine);
  };
  command.run = [state] { return run_eval(state->flags, state->engine, state->model); };
  return command;
}

Command plan_command() {
  auto state = std::make_shared<State<PlanFlags>>();
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
  settings.add_switch("search-formats", &state->flags.search_formats,
                      "look at 4-bit weights and KV, too, which change answers; --format and "
                      "--kv-format pin theirs");
  settings.add_switch("frontier", &state->flags.frontier,
                      "list the plans that none beats in both throughput and latency");
  settings.add_text("frontier-svg", &state->flags.frontier_svg, "FILE", "draw them, too");
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
                    "GB/s from each machine to the next (1.25: 10 Gbit/s Ethernet)");
  settings.add_switch("json", &state->flags.json, "print one JSON object");
  settings.add_text("output", &state->flags.output, "FILE", "write the plan, for --plan");
  add_engine_flags(settings, &state->engine);
  command.check = [state] {
    const Status flags = validate(state->flags);
    return flags.ok() ? validate(state->engine) : flags;
  };
  command.run = [state] { return run_plan(state->flags, state->engine, state->model); };
  return command;
}

}  // namespace spillway
