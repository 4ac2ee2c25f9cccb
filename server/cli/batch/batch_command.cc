// The command line of `spillway batch`.
#include <csignal>
#include <memory>

#include "server/cli/batch/batch.h"
#include "server/cli/flags/engine_settings.h"
#include "server/log.h"

namespace spillway {

namespace {

std::string amount_text(const std::optional<KvAmount>& amount) {
  if (!amount) return "default";
  return to_string(*amount);
}

std::string format_text(const std::optional<Format>& format) {
  return format ? std::string(format_name(*format)) : "default";
}

struct State {
  std::string model;
  BatchFlags batch;
  EngineFlags engine;
};

void add_batch_flags(Settings& settings, BatchFlags* flags) {
  settings.group("Batch");
  settings.add_text("input", &flags->input, "FILE",
                    "JSON Lines: OpenAI batch lines, or bodies of /v1/completions; mixed is fine");
  settings.add_text("output", &flags->output, "FILE",
                    "one line per line of the input, in its order; appears when all are done");
  settings.add_switch("resume", &flags->resume,
                      "go on with the unfinished run that left OUTPUT.journal, if there is one");
  settings.add_switch("overwrite", &flags->overwrite, "replace an OUTPUT that is there already");
  settings.add_switch("retry-errors", &flags->retry_errors,
                      "as --resume, and run lines that failed again, also those of a finished "
                      "OUTPUT");
  settings.add_integer("max-errors", &flags->max_errors, 0, INT64_MAX,
                       "stop when more lines than this have failed; what is done is kept");
  settings.add_switch("fail-on-errors", &flags->fail_on_errors,
                      "exit with 1 if a line failed; without it with 0, every line has its row");
  settings.add_text("export", &flags->export_journal, "JOURNAL",
                    "write what an unfinished run's journal holds to --output; needs no MODEL");
  settings.add_integer("answers-bytes-max", &flags->answers_bytes_max, 1, int64_t{1} << 40,
                       "memory of --host-memory for prompts and answers in flight; lines wait "
                       "while it is full (with logprobs answers are large)");
  settings.add_switch("dry-run", &flags->dry_run, "check every line and count tokens; run nothing");
  settings.add_choice("progress", &flags->progress, {"auto", "plain", "json", "none"},
                      "what stderr shows; auto: one moving line on a terminal, else plain lines");
}

Status check_flags(const std::string& model, const BatchFlags& flags, const EngineFlags& engine) {
  const bool exports = !flags.export_journal.empty();
  if (!exports && model.empty()) return invalid_argument("MODEL is missing");
  if (!exports && flags.input.empty()) return invalid_argument("--input is missing");
  if (flags.output.empty() && !flags.dry_run) return invalid_argument("--output is missing");
  return validate(engine);
}

}  // namespace

JournalHead result_settings(const EngineFlags& flags) {
  return {{"seed", std::to_string(flags.seed)},
          {"format", format_text(flags.format)},
          {"kv-format", format_text(flags.kv_format)},
          {"kv-rule", flags.kv_rule},
          {"kv-heavy", amount_text(flags.kv_heavy)},
          {"kv-recent", amount_text(flags.kv_recent)},
          {"kv-sink", std::to_string(flags.kv_sink)},
          {"kv-ratio-of", flags.kv_ratio_of},
          {"device", flags.device},
          {"version", SPILLWAY_VERSION}};
}

Command batch_command(const OpenModel& open) {
  auto state = std::make_shared<State>();
  Command command;
  command.name = "batch";
  command.summary = "complete a file of requests; can be killed and resumed";
  command.description =
      "Completes every line of a file and writes one line for each. Finished lines are kept in "
      "OUTPUT.journal until all are done, so a run that was interrupted, killed or cut off goes on "
      "with the same command and --resume: no line is lost, none has two results. A bad line gets "
      "an error of its own and stops nothing. A fault of the machine (a disk, memory, a GPU) is no "
      "line's result: its lines run again, and if that does not help the run stops with status 1, "
      "to be resumed.";
  command.usage = "--input FILE --output FILE";
  command.arguments = {{"MODEL", "a Hugging Face model directory or a packed .spill file",
                        &state->model, /*optional=*/true}};
  add_batch_flags(command.settings, &state->batch);
  add_engine_flags(command.settings, &state->engine);
  command.check = [state]() -> Status {
    return check_flags(state->model, state->batch, state->engine);
  };
  command.run = [state, open]() -> int {
    BatchSetup setup;
    setup.seed = state->engine.seed;
    setup.settings = result_settings(state->engine);
    setup.open = [&](const OpenFor& purpose) { return open(state->model, state->engine, purpose); };
    // Whoever reads our stderr may leave at any time, also while the model is loaded.
    std::signal(SIGPIPE, SIG_IGN);
    if (!state->batch.export_journal.empty()) return report("batch", export_batch(state->batch));
    const Result<BatchOutcome> outcome = run_batch(state->batch, setup);
    if (!outcome.ok() || !state->batch.fail_on_errors || outcome->failed == 0) {
      return report("batch", outcome.status());
    }
    log_error(std::to_string(outcome->failed) + " lines failed (--fail-on-errors)");
    return static_cast<int>(kExitFailure);
  };
  return command;
}

}  // namespace spillway
