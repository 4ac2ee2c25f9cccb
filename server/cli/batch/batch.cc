#include "server/cli/batch/batch.h"

#include <unistd.h>
#include <csignal>
#include <memory>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "kernels/base/units.h"
#include "server/batches/batch_input.h"
#include "server/batches/batch_order.h"
#include "server/batches/batch_run.h"
#include "server/batches/crash_mark.h"
#include "server/batches/file_rows.h"
#include "server/cli/batch/batch_identity.h"
#include "server/cli/batch/batch_output.h"
#include "server/cli/batch/remote_batch.h"
#include "server/cli/batch/workload_sample.h"
#include "server/cli/common/console.h"
#include "server/cli/common/interrupt.h"
#include "server/cli/common/stage_command.h"
#include "server/cli/flags/engine_settings.h"
#include "server/log.h"

namespace spillway {

namespace {

std::string journal_path(const BatchFlags& flags) {
  return flags.output + ".journal";
}

std::string mark_path(const BatchFlags& flags) {
  return journal_path(flags) + ".crashed";
}

// The model takes longer to identify.
JournalHead head_without_model(const BatchSetup& setup, const InputSummary& input) {
  return batch_head_of(input.hash, std::nullopt, setup.settings);
}

JournalHead head_of(const BatchSetup& setup, const InputSummary& input,
                    const std::string& identity) {
  return batch_head_of(input.hash, identity, setup.settings);
}

bool continues(const BatchFlags& flags) {
  return flags.resume || flags.retry_errors;
}

// Explains why a journal cannot be opened: one that is in use must not be deleted.
Status explain_journal(const Status& status, const std::string& journal) {
  if (status.code() != Code::kCapacity) return status;
  return {Code::kCapacity, journal +
                               " is in use by another process: a batch with this output is "
                               "running. Wait for its end, or stop it and use --resume"};
}

// Refuses bad paths before anything slow happens.
Status check_files(const BatchFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(check_output(output_target(flags.output), flags.input));
  const std::string journal = journal_path(flags);
  if (continues(flags)) return {};
  if (std::filesystem::exists(journal)) {
    const Result<JournalCounts> counts = Journal::inspect(journal);
    if (counts.status().code() == Code::kCapacity) return explain_journal(counts.status(), journal);
    const std::string what =
        counts.ok() ? "an unfinished run with " + std::to_string(counts->finished) + " lines done"
                    : "an unfinished run that cannot be read (" +
                          std::string(counts.status().message()) + ")";
    return invalid_argument(journal + " holds " + what +
                            "; continue it with --resume, or delete it to begin anew");
  }
  if (std::filesystem::exists(flags.output) && !flags.overwrite) {
    return invalid_argument(flags.output +
                            " exists; choose another --output, or --overwrite to replace it");
  }
  return {};
}

// The journal of an earlier run, if there is one to continue. Its lock is held from here on.
Result<std::optional<Journal>> open_earlier(const BatchFlags& flags) {
  const std::string path = journal_path(flags);
  if (!continues(flags) || !std::filesystem::exists(path)) return std::optional<Journal>();
  Result<Journal> journal = Journal::open(path);
  if (!journal.ok()) return explain_journal(journal.status(), path);
  return std::optional<Journal>(std::move(journal).value());
}

// Records the suspects if the program crashed in the last run.
Status blame(const BatchFlags& flags, Journal& journal) {
  const std::vector<int64_t> ran = CrashMark::read(mark_path(flags)).rows;
  // Delete the mark first: counting one crash twice would convict innocent rows.
  if (::unlink(mark_path(flags).c_str()) != 0) return {};
  log_warning("The last run crashed with " + std::to_string(ran.size()) +
              " lines in the block. They run last, and apart from the others.");
  return journal.blame(ran);
}

// Turns the output of this very run back into a journal so that its failed rows can run again.
Result<Journal> reopen_output(const BatchFlags& flags, const JournalHead& head) {
  SPILLWAY_ASSIGN_OR_RETURN(Journal journal, Journal::create(journal_path(flags), head));
  const Status read = read_back(output_target(flags.output), journal);
  if (read.ok()) return journal;
  SPILLWAY_RETURN_IF_ERROR(Journal::discard(std::move(journal)));
  return read;
}

void print_summary(const BatchProgress& progress, const BatchFlags& flags,
                   std::optional<double> predicted) {
  // The prediction does not apply to the rest of an earlier run.
  const std::string expected =
      predicted && progress.lines_before == 0 ? " (" + format_rate(*predicted) + " predicted)" : "";
  const std::string cached = progress.cached_tokens == 0
                                 ? ""
                                 : " (" + std::to_string(progress.cached_tokens) + " found cached)";
  say("Done in " + format_seconds(progress.seconds) + ": " +
      std::to_string(progress.lines_done - progress.lines_failed) + " of " +
      std::to_string(progress.lines_total) + " lines completed, " +
      std::to_string(progress.lines_failed) + " failed; " + std::to_string(progress.prompt_tokens) +
      " prompt tokens" + cached + ", " + std::to_string(progress.generated_tokens) +
      " generated, " + format_rate(progress.tokens_per_second()) + " tokens/s" + expected + ".");
  if (progress.lines_failed > 0) say("Lines that failed say why in their \"error\".");
  say("Output: " + flags.output);
}

void warn_of(const IgnoredNames& ignored) {
  if (const std::string text = ignored.text(); !text.empty()) log_warning(text + ".");
}

Status dry_run(const BatchFlags& flags, const BatchSetup& setup) {
  constexpr int64_t kShown = 10;
  SPILLWAY_ASSIGN_OR_RETURN(const ServedModel model,
                            setup.open({.tokenizer_only = true, .workload = {}}));
  SPILLWAY_ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(flags.input));
  CustomIds ids;
  InputLine text;
  IgnoredNames ignored;
  int64_t lines = 0, bad = 0, sequences = 0, prompt_tokens = 0, new_tokens_max = 0;
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, input.next(&text));
    if (!found) break;
    ++lines;
    BatchLine line = read_batch_line(text, model.context);
    ids.check(&line);
    if (!line.error) {
      auto parsed = parse_batch_line(line, model.context, setup.seed);
      if (const auto* error = std::get_if<ApiError>(&parsed)) line.error = *error;
      if (const auto* call = std::get_if<CompletionCall>(&parsed)) {
        ignored.add(*call);
        for (const Request& request : call->requests) {
          ++sequences;
          prompt_tokens += static_cast<int64_t>(request.prompt.size());
          new_tokens_max += request.max_tokens;
        }
      }
    }
    if (!line.error) continue;
    if (++bad <= kShown) say("line " + std::to_string(line.number) + ": " + line.error->message);
  }
  if (bad > kShown) say("... and " + std::to_string(bad - kShown) + " more");
  warn_of(ignored);
  std::printf(
      "%lld lines, %lld good, %lld bad; %lld sequences, %lld prompt tokens, at most %lld "
      "new tokens\n",
      static_cast<long long>(lines), static_cast<long long>(lines - bad),
      static_cast<long long>(bad), static_cast<long long>(sequences),
      static_cast<long long>(prompt_tokens), static_cast<long long>(new_tokens_max));
  if (bad == 0) return {};
  return invalid_argument(std::to_string(bad) + " of " + std::to_string(lines) +
                          " lines would fail");
}

// The workload estimated from the first lines, for the plan search.
Result<std::vector<RequestGroup>> expected_workload(BatchInput& input, const ServedModel& model,
                                                    const BatchSetup& setup,
                                                    const InputSummary& summary) {
  WorkloadSample sample(model.context, setup.shares_beginnings);
  InputLine text;
  while (!sample.full()) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, input.next(&text));
    if (!found) break;
    sample.add(text, setup.seed);
  }
  input.rewind();
  return sample.groups(summary.rows);
}

// Writes the output from the journal once all rows have their results.
Status conclude(const BatchFlags& flags, const InputSummary& summary, const std::string& run_id,
                Journal journal) {
  if (journal.counts().finished != summary.rows) {
    return corruption(journal_path(flags) + " has " + std::to_string(journal.counts().finished) +
                      " lines and " + flags.input + " has " + std::to_string(summary.rows) +
                      "; --export writes what the journal holds");
  }
  SPILLWAY_RETURN_IF_ERROR(write_output(journal, output_target(flags.output), run_id));
  return Journal::discard(std::move(journal));
}

Status explain_stop(const Status& status, const BatchFlags& flags, const Journal& journal) {
  const std::string kept =
      std::to_string(journal.committed().finished) + " finished lines are safe in " +
      journal_path(flags) +
      (status.code() == Code::kInvalidArgument
           ? "; bring the input back as it was and continue with the same command and --resume, or "
             "write them with: spillway batch --export " +
                 journal_path(flags) + " --output FILE"
           : "; continue with the same command and --resume");
  return {status.code(), std::string(status.message()) + ": " + kept};
}

// The text that the second interrupt prints.
std::string last_words(const BatchFlags& flags) {
  return "\nspillway batch: ended at once. Finished lines are in " + journal_path(flags) +
         "; continue with the same command and --resume.\n";
}

// A run ready to start: its identity, and the results of an earlier one.
struct Prepared {
  InputSummary summary;
  JournalHead head;
  std::string run_id;
  OutputFound output;
  bool retries = false;       // Failed lines of a finished output run again.
  bool has_finished = false;  // There is nothing to do; the fields below are empty.
  BatchOrder order;
  std::vector<RequestGroup> workload;
  std::optional<Journal> journal;
};

// Whether the journal belongs to this model, as far as is known before packing: number formats are
// not.
Status check_source(const Journal& journal, const std::string& source) {
  for (const auto& [name, value] : journal.head()) {
    if (name == "model" && value.starts_with(source + " ")) return {};
  }
  return journal.check({{"model", source}});
}

// The order in which the lines start; says so when that is not as usual.
Result<BatchOrder> order_of(const BatchFlags& flags, bool shares_beginnings, BatchInput& input,
                            const ApiContext& context, int64_t rows) {
  if (flags.no_reorder || !shares_beginnings) return BatchOrder();
  SPILLWAY_ASSIGN_OR_RETURN(BatchOrder order, BatchOrder::of(input, rows, context));
  if (order.too_many()) {
    log_info("Lines run in the order of the file: one by their beginnings would take more than " +
             format_bytes(kOrderBytesMax) + " of memory.");
  } else if (!order.lines().empty()) {
    log_info("Lines that begin alike run near each other (--no-reorder: in the file's order).");
  }
  return order;
}

// Refuses everything that can be refused before weights are packed or loaded.
Result<Prepared> prepare(const BatchFlags& flags, const BatchSetup& setup, BatchInput& input) {
  Prepared run;
  SPILLWAY_ASSIGN_OR_RETURN(run.journal, open_earlier(flags));
  SPILLWAY_ASSIGN_OR_RETURN(run.summary, summarize(input));
  if (run.journal) {
    SPILLWAY_RETURN_IF_ERROR(run.journal->check(head_without_model(setup, run.summary)));
  }
  OpenFor purpose{.tokenizer_only = true, .workload = {}};
  if (run.journal) {
    purpose.accepts_source = [&](const std::string& source) {
      return check_source(*run.journal, source);
    };
  }
  SPILLWAY_ASSIGN_OR_RETURN(const ServedModel model, setup.open(purpose));
  run.head = head_of(setup, run.summary, model.identity);
  run.run_id = run_id_of(run.head);
  if (run.journal) SPILLWAY_RETURN_IF_ERROR(run.journal->check(run.head));
  SPILLWAY_ASSIGN_OR_RETURN(run.output, find_output(output_target(flags.output), run.run_id,
                                                    run.summary.rows, run.summary.last_row));
  if (run.output.exists && !run.output.whole && !flags.overwrite) {
    return invalid_argument(flags.output +
                            " exists and is not the output of this run; choose another --output, "
                            "or --overwrite to replace it");
  }
  run.retries = flags.retry_errors && run.output.failed > 0;
  run.has_finished = !run.journal && run.output.whole && continues(flags) && !run.retries;
  if (run.has_finished) return run;
  SPILLWAY_ASSIGN_OR_RETURN(
      run.order, order_of(flags, setup.shares_beginnings, input, model.context, run.summary.rows));
  SPILLWAY_ASSIGN_OR_RETURN(run.workload, expected_workload(input, model, setup, run.summary));
  return run;
}

Status run_prepared(const BatchFlags& flags, const BatchSetup& setup, const ServedModel& model,
                    const Prepared& run, BatchInput& input, Journal& journal,
                    BatchProgress* progress) {
  const InterruptGuard guard(last_words(flags));
  CrashMark mark(mark_path(flags),
                 static_cast<size_t>(std::max<int64_t>(1, model.scheduler->queue_max())));
  ProgressDisplay display(progress_kind(flags.progress, STDERR_FILENO), stderr);
  IgnoredNames ignored;
  FileRows rows(input, run.order.lines().empty() ? nullptr : &run.order, journal, model.context,
                {run.run_id, setup.seed});
  BatchJob job;
  job.ignored = &ignored;
  job.scheduler = model.scheduler;
  job.context = &model.context;
  job.rows = run.summary.rows;
  job.marks = mark.slots();
  job.errors_max = flags.max_errors;
  job.answers_bytes_max = static_cast<uint64_t>(flags.answers_bytes_max);
  job.retry = setup.retry;
  job.interrupted = [&] { return guard.interrupted(); };
  job.show = [&](const BatchProgress& now) {
    *progress = now;
    display.update(now);
  };
  const Result<BatchProgress> done = run_rows(job, rows);
  if (!done.ok()) {
    display.finish(*progress, "interrupted");
    return explain_stop(done.status(), flags, journal);
  }
  *progress = done.value();
  display.finish(*progress, "done");
  warn_of(ignored);
  return {};
}

struct State {
  std::string model;
  BatchFlags batch;
  RemoteBatchFlags remote;
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
  settings.add_switch("no-reorder", &flags->no_reorder,
                      "start lines in the order of the file; without it those that begin alike "
                      "near each other, to share their KV cache. No result depends on it");
  settings.add_switch("dry-run", &flags->dry_run, "check every line and count tokens; run nothing");
  settings.add_choice("progress", &flags->progress, {"auto", "plain", "json", "none"},
                      "what stderr shows; auto: one moving line on a terminal, else plain lines");
}

RemoteBatchFiles files_of(const BatchFlags& flags) {
  return {flags.input, flags.output, flags.overwrite, flags.progress};
}

Status check_flags(const std::string& model, const BatchFlags& flags, const EngineFlags& engine) {
  const bool exports = !flags.export_journal.empty();
  if (!exports && model.empty()) return invalid_argument("MODEL is missing");
  if (!exports && flags.input.empty()) return invalid_argument("--input is missing");
  if (flags.output.empty() && !flags.dry_run) return invalid_argument("--output is missing");
  return validate(engine);
}

}  // namespace

Result<BatchOutcome> run_batch(const BatchFlags& flags, const BatchSetup& setup) {
  if (flags.dry_run) {
    SPILLWAY_RETURN_IF_ERROR(dry_run(flags, setup));
    return BatchOutcome{};
  }
  SPILLWAY_RETURN_IF_ERROR(check_files(flags));
  SPILLWAY_ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(flags.input));
  SPILLWAY_ASSIGN_OR_RETURN(Prepared run, prepare(flags, setup, input));
  if (run.has_finished) {
    say("Nothing to resume: " + flags.output + " is the finished output of this run.");
    return BatchOutcome{run.output.failed};
  }
  OpenFor purpose;
  purpose.workload = run.workload;
  purpose.requests = {.body_bytes_max = 0,
                      .answers_bytes_max = static_cast<uint64_t>(flags.answers_bytes_max)};
  SPILLWAY_ASSIGN_OR_RETURN(const ServedModel model, setup.open(purpose));
  if (run.journal) {
    SPILLWAY_RETURN_IF_ERROR(run.journal->adopt(run.head));
    SPILLWAY_RETURN_IF_ERROR(blame(flags, *run.journal));
    if (flags.retry_errors) SPILLWAY_RETURN_IF_ERROR(run.journal->forget_failed());
  } else {
    ::unlink(mark_path(flags).c_str());  // The mark belongs to an earlier run.
    SPILLWAY_ASSIGN_OR_RETURN(run.journal, run.output.whole && run.retries
                                               ? reopen_output(flags, run.head)
                                               : Journal::create(journal_path(flags), run.head));
  }
  if (const int64_t finished = run.journal->counts().finished; finished > 0) {
    log_info("Resuming: " + std::to_string(finished) + " of " + std::to_string(run.summary.rows) +
             " lines are done.");
  }
  BatchProgress progress;
  SPILLWAY_RETURN_IF_ERROR(run_prepared(flags, setup, model, run, input, *run.journal, &progress));
  SPILLWAY_RETURN_IF_ERROR(conclude(flags, run.summary, run.run_id, *std::move(run.journal)));
  print_summary(progress, flags, model.predicted_tokens_per_second);
  return BatchOutcome{progress.lines_failed};
}

Status export_batch(const BatchFlags& flags) {
  const std::string output = output_target(flags.output);
  SPILLWAY_RETURN_IF_ERROR(check_output(output, flags.export_journal));
  if (std::filesystem::exists(output) && !flags.overwrite) {
    return invalid_argument(flags.output +
                            " exists; choose another --output, or --overwrite to replace it");
  }
  const Result<Journal> journal = Journal::open(flags.export_journal);
  if (!journal.ok()) return explain_journal(journal.status(), flags.export_journal);
  SPILLWAY_RETURN_IF_ERROR(write_output(journal.value(), output, "export"));
  const JournalCounts& counts = journal->counts();
  say(std::to_string(counts.finished) + " lines, " + std::to_string(counts.failed) +
      " of them failed. Output: " + flags.output);
  return {};
}

Command batch_command(const OpenModel& open) {
  auto state = std::make_shared<State>();
  Command command;
  command.name = "batch";
  command.alias = "run-batch";  // vLLM's name
  command.summary = "complete a file of requests; can be killed and resumed";
  command.description =
      "Completes every line of a file and writes one line for each. Finished lines are kept in "
      "OUTPUT.journal until all are done, so a run that was interrupted, killed or cut off goes on "
      "with the same command and --resume: no line is lost, none has two results. A bad line gets "
      "an error of its own and stops nothing. A fault of the machine (a disk, memory, a GPU) is no "
      "line's result: its lines run again, and if that does not help the run stops with status 1, "
      "to be resumed. With --server URL a server runs the lines, and no MODEL is needed here.";
  command.usage = "--input FILE --output FILE";
  command.arguments = {{"MODEL", kModelHelp, &state->model, /*optional=*/true}};
  add_batch_flags(command.settings, &state->batch);
  add_remote_batch_flags(command.settings, &state->remote);
  add_engine_flags(command.settings, &state->engine);
  command.check_given = [state](const Settings& given) {
    return check_remote_batch_given(given, state->remote);
  };
  command.check = [state]() -> Status {
    if (!state->remote.server.empty()) {
      if (state->model.empty()) return check_remote_batch(state->remote, files_of(state->batch));
      return invalid_argument(
          "MODEL is of a batch on this machine; with --server the server has it");
    }
    return check_flags(state->model, state->batch, state->engine);
  };
  command.run = [state, open]() -> int {
    std::shared_ptr<StageRank> rank;
    if (const auto done = start_stages("batch", state->model, state->engine, &rank)) return *done;
    BatchSetup setup;
    setup.shares_beginnings = rank == nullptr && state->engine.prefix_cache_bytes.value_or(1) > 0;
    setup.seed = state->engine.seed;
    setup.settings = result_settings(state->engine);
    setup.open = [&](OpenFor purpose) {
      purpose.stages = rank;
      return as_input(open(state->model, state->engine, purpose));
    };
    // The reader of our stderr may leave at any time, also while the model is loaded.
    std::signal(SIGPIPE, SIG_IGN);
    if (!state->batch.export_journal.empty()) return report("batch", export_batch(state->batch));
    int64_t failed = 0;
    Status status;
    if (!state->remote.server.empty()) {
      const Result<RemoteBatchOutcome> outcome =
          run_remote_batch(state->remote, files_of(state->batch));
      status = outcome.status();
      if (status.ok()) failed = outcome->failed;
    } else {
      const Result<BatchOutcome> outcome = run_batch(state->batch, setup);
      status = outcome.status();
      if (status.ok()) failed = outcome->failed;
    }
    if (!status.ok() || !state->batch.fail_on_errors || failed == 0) return report("batch", status);
    log_error(std::to_string(failed) + " lines failed (--fail-on-errors)");
    return static_cast<int>(kExitFailure);
  };
  return command;
}

}  // namespace spillway
