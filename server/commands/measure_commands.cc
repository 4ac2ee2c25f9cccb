// The command lines of `spillway bench` and `spillway eval`.
#include "server/commands/measure_commands.h"

#include <memory>

#include "server/commands/bench.h"
#include "server/commands/eval.h"

namespace spillway {

namespace {

template <class Flags>
struct State {
  std::string model;
  Flags flags;
  EngineFlags engine;
};

constexpr const char* kModelHelp =
    "a Hugging Face model directory or a packed .spill file; with --dummy-weights the name of a "
    "shape such as opt-1.3b";

}  // namespace

Command bench_command() {
  auto state = std::make_shared<State<BenchFlags>>();
  Command command;
  command.name = "bench";
  command.summary = "time a block of equal sequences against this machine's bound";
  command.description =
      "Runs a block of equal sequences and prints tokens/s, beside the bound that the machine's "
      "own rates give: matrix products by shape and memory bandwidth, measured in the same process "
      "just before. efficiency is bound over measured time.";
  command.arguments = {{"MODEL", kModelHelp, &state->model}};
  Settings& settings = command.settings;
  settings.group("Benchmark");
  settings.add_integer("prompt-tokens", &state->flags.prompt_tokens, 1, 1 << 20,
                       "tokens of each prompt");
  settings.add_integer("new-tokens", &state->flags.new_tokens, 1, 1 << 20,
                       "tokens to generate for each");
  settings.add_integer("sequences", &state->flags.sequences, 1, 65536, "how many at once");
  settings.add_switch("json", &state->flags.json, "print one JSON object");
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
  settings.add_switch("json", &state->flags.json, "print one JSON object");
  add_engine_flags(settings, &state->engine);
  command.check = [state]() -> Status {
    if (state->flags.text.empty()) return invalid_argument("--text is missing");
    return validate(state->engine);
  };
  command.run = [state] { return run_eval(state->flags, state->engine, state->model); };
  return command;
}

}  // namespace spillway
