// The command line of `spillway generate`.
#include <memory>

#include "server/cli/flags/engine_settings.h"
#include "server/cli/generate/generate.h"

namespace spillway {

namespace {

struct State {
  std::string model;
  GenerateFlags generate;
  EngineFlags engine;
};

void add_generate_flags(Settings& settings, GenerateFlags* flags) {
  settings.group("Prompt");
  settings.add_text("prompt", &flags->prompt, "TEXT", "the text to go on with");
  settings.add_text("prompt-file", &flags->prompt_file, "FILE", "a file that holds it");
  settings.add_text("prompt-tokens", &flags->prompt_tokens, "5,7,9",
                    "its token ids, for models without a tokenizer, too");
  settings.group("Output");
  settings.add_integer("max-tokens", &flags->max_tokens, 0, INT32_MAX, "tokens to generate");
  settings.add_integer("min-tokens", &flags->min_tokens, 0, INT32_MAX, "do not end before so many");
  settings.add_text("stop", &flags->stop, "TEXT", "end before this text");
  settings.add_switch("ignore-eos", &flags->ignore_eos, "go on behind the model's end token");
  settings.add_switch("echo", &flags->echo, "print the prompt, too");
  settings.add_switch("json", &flags->json, "print the whole answer of /v1/completions");
  settings.add_integer("logprobs", &flags->logprobs, 0, 20,
                       "with --json: log-probabilities of each token and of the N best");
  settings.group("Sampling");
  settings.add_real("temperature", &flags->temperature, 0, 2, "0: always the likeliest token");
  settings.add_real("top-p", &flags->top_p, 0, 1, "from the likeliest tokens of this sum only");
  settings.add_integer("top-k", &flags->top_k, -1, INT32_MAX, "from the K likeliest; 0: all");
  settings.add_real("min-p", &flags->min_p, 0, 1,
                    "from tokens at least this likely, relative to the likeliest");
  settings.add_real("repetition-penalty", &flags->repetition_penalty, 0.001, 100,
                    "above 1: less of what prompt and output have");
  settings.add_real("presence-penalty", &flags->presence_penalty, -2, 2,
                    "above 0: less of what the output has");
  settings.add_real("frequency-penalty", &flags->frequency_penalty, -2, 2,
                    "above 0: the less of a token the more often the output has it");
}

Status check(const State& state) {
  const GenerateFlags& flags = state.generate;
  const int prompts =
      !flags.prompt.empty() + !flags.prompt_file.empty() + !flags.prompt_tokens.empty();
  if (prompts == 0) {
    return invalid_argument("a prompt is missing: --prompt, --prompt-file or --prompt-tokens");
  }
  if (prompts > 1) {
    return invalid_argument("only one of --prompt, --prompt-file and --prompt-tokens can be given");
  }
  if (flags.logprobs && !flags.json) return invalid_argument("--logprobs needs --json");
  return validate(state.engine);
}

}  // namespace

Command generate_command(const OpenModel& open) {
  auto state = std::make_shared<State>();
  Command command;
  command.name = "generate";
  command.summary = "complete one prompt";
  command.description =
      "Writes the completion of one prompt to standard output as it appears, and what it took to "
      "standard error. The same --seed gives the same text.";
  command.usage = "--prompt TEXT";
  command.arguments = {
      {"MODEL", "a Hugging Face model directory or a packed .spill file", &state->model}};
  add_generate_flags(command.settings, &state->generate);
  add_engine_flags(command.settings, &state->engine);
  command.check = [state] { return check(*state); };
  command.run = [state, open] {
    const Result<ServedModel> model = open(state->model, state->engine, OpenFor{});
    if (!model.ok()) return report("generate", model.status());
    return report("generate",
                  run_generate(state->generate, state->engine.seed, model.value(), stdout));
  };
  return command;
}

}  // namespace spillway
