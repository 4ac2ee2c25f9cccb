#include "server/commands/batch.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "kernels/base/units.h"
#include "server/commands/batch_input.h"
#include "server/commands/batch_output.h"
#include "server/commands/batch_run.h"
#include "server/commands/interrupt.h"
#include "server/commands/workload_file.h"

namespace spillway {

namespace {

std::string journal_path(const BatchFlags& flags) {
  return flags.output + ".journal";
}

std::string mark_path(const BatchFlags& flags) {
  return journal_path(flags) + ".crashed";
}

void say(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
}

JournalHead head_of(const BatchSetup& setup, const InputSummary& input, const ServedModel& model) {
  JournalHead head = {{"input", input.hash}, {"model", model.identity}};
  head.insert(head.end(), setup.settings.begin(), setup.settings.end());
  return head;
}

// 16 hex digits that name the run: equal runs give their rows equal ids.
std::string run_id_of(const JournalHead& head) {
  std::string all;
  for (const auto& [name, value] : head) all += name + "=" + value + "\n";
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(all.data(), all.size())));
  return text;
}

// Refuses before anything slow happens.
Status check_files(const BatchFlags& flags) {
  if (flags.dry_run) return {};
  SPILLWAY_RETURN_IF_ERROR(check_output(flags.output, flags.input));
  const std::string journal = journal_path(flags);
  if (flags.resume || !std::filesystem::exists(journal)) return {};
  const Result<JournalCounts> counts = Journal::inspect(journal);
  const std::string what =
      counts.ok() ? "an unfinished run with " + std::to_string(counts->finished) + " lines done"
                  : "an unfinished run that cannot be read";
  return invalid_argument(journal + " holds " + what +
                          "; continue it with --resume, or delete it to begin anew");
}

// Opens the journal of this run, and settles the blame if the program crashed in the last one.
Result<Journal> open_journal(const BatchFlags& flags, const JournalHead& head) {
  const std::string path = journal_path(flags);
  const bool resumes = flags.resume && std::filesystem::exists(path);
  SPILLWAY_ASSIGN_OR_RETURN(Journal journal,
                            resumes ? Journal::resume(path, head) : Journal::create(path, head));
  // The mark goes first: blame twice for one crash would condemn rows that did nothing.
  if (::unlink(mark_path(flags).c_str()) == 0 && resumes) {
    SPILLWAY_RETURN_IF_ERROR(journal.blame_running());
    say("The last run crashed; the rows that it was running now run one at a time.");
  }
  return journal;
}

void print_summary(const BatchProgress& progress, const BatchFlags& flags,
                   std::optional<double> predicted) {
  // Of a run that goes on where another stopped the prediction says nothing.
  const std::string expected =
      predicted && progress.lines_before == 0 ? " (" + format_rate(*predicted) + " predicted)" : "";
  say("Done in " + format_seconds(progress.seconds) + ": " +
      std::to_string(progress.lines_done - progress.lines_failed) + " of " +
      std::to_string(progress.lines_total) + " lines completed, " +
      std::to_string(progress.lines_failed) + " failed; " + std::to_string(progress.prompt_tokens) +
      " prompt tokens, " + std::to_string(progress.generated_tokens) + " generated, " +
      format_rate(progress.tokens_per_second()) + " tokens/s" + expected + ".");
  if (progress.lines_failed > 0) say("Lines that failed say why in their \"error\".");
  say("Output: " + flags.output);
}

void warn_of(const IgnoredNames& ignored) {
  if (const std::string text = ignored.text(); !text.empty()) say("Warning: " + text + ".");
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

// What the first lines say of all, so that a plan can be found for it.
Result<std::vector<RequestGroup>> expected_workload(const BatchFlags& flags,
                                                    const BatchSetup& setup,
                                                    const InputSummary& summary) {
  constexpr int64_t kSampledLines = 2000;
  constexpr size_t kSampledBytes = size_t{4} << 20;
  constexpr size_t kGroups = 32;
  SPILLWAY_ASSIGN_OR_RETURN(const ServedModel model,
                            setup.open({.tokenizer_only = true, .workload = {}}));
  SPILLWAY_ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(flags.input));
  std::vector<RequestGroup> sample;
  InputLine text;
  int64_t lines = 0;
  for (size_t bytes = 0; lines < kSampledLines && bytes < kSampledBytes; ++lines) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, input.next(&text));
    if (!found) break;
    bytes += text.text.size();
    const BatchLine line = read_batch_line(text, model.context);
    if (line.error) continue;
    const auto parsed = parse_batch_line(line, model.context, setup.seed);
    const auto* call = std::get_if<CompletionCall>(&parsed);
    if (call == nullptr) continue;
    for (const Request& request : call->requests) {
      sample.push_back({std::max<int64_t>(1, static_cast<int64_t>(request.prompt.size())),
                        std::max<int64_t>(1, request.max_tokens), 1, request.kv});
    }
  }
  const double rows_of_line = static_cast<double>(summary.rows) / static_cast<double>(lines);
  std::vector<RequestGroup> groups = few_groups(std::move(sample), kGroups);
  for (RequestGroup& group : groups) {
    group.count =
        std::max<int64_t>(1, std::llround(static_cast<double>(group.count) * rows_of_line));
  }
  return groups;
}

// All rows have their result: the journal becomes the output.
Status conclude(const BatchFlags& flags, const InputSummary& summary, Journal journal) {
  SPILLWAY_CHECK(journal.counts().finished == summary.rows);
  SPILLWAY_RETURN_IF_ERROR(write_output(journal, flags.output));
  { const Journal closed = std::move(journal); }
  return Journal::remove(journal_path(flags));
}

Status explain_stop(const Status& status, const BatchFlags& flags, const Journal& journal) {
  const std::string kept = std::to_string(journal.counts().finished) +
                           " finished lines are safe in " + journal_path(flags) +
                           "; continue with the same command and --resume";
  return {status.code(), std::string(status.message()) + ": " + kept};
}

}  // namespace

Status run_batch(const BatchFlags& flags, const BatchSetup& setup) {
  SPILLWAY_RETURN_IF_ERROR(check_files(flags));
  if (flags.dry_run) return dry_run(flags, setup);
  SPILLWAY_ASSIGN_OR_RETURN(const InputSummary summary, summarize(flags.input));
  OpenFor purpose;
  SPILLWAY_ASSIGN_OR_RETURN(purpose.workload, expected_workload(flags, setup, summary));
  SPILLWAY_ASSIGN_OR_RETURN(const ServedModel model, setup.open(purpose));
  const JournalHead head = head_of(setup, summary, model);
  const std::string run_id = run_id_of(head);
  if (flags.resume && !std::filesystem::exists(journal_path(flags)) && summary.rows > 0 &&
      is_output_of(flags.output, run_id, summary.last_row)) {
    say("Nothing to resume: " + flags.output + " is the finished output of this run.");
    return {};
  }
  SPILLWAY_ASSIGN_OR_RETURN(Journal journal, open_journal(flags, head));
  if (journal.counts().finished > 0) {
    say("Resuming: " + std::to_string(journal.counts().finished) + " of " +
        std::to_string(summary.rows) + " lines are done.");
  }
  SPILLWAY_ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(flags.input));

  const InterruptGuard guard;
  const CrashMark mark(mark_path(flags));
  ProgressDisplay display(progress_kind(flags.progress, STDERR_FILENO), stderr);
  BatchProgress progress;
  IgnoredNames ignored;
  BatchJob job;
  job.input = &input;
  job.ignored = &ignored;
  job.journal = &journal;
  job.scheduler = model.scheduler;
  job.context = &model.context;
  job.run_id = run_id;
  job.seed = setup.seed;
  job.rows = summary.rows;
  job.interrupted = [&] { return guard.interrupted(); };
  job.show = [&](const BatchProgress& now) {
    progress = now;
    display.update(now);
  };
  const Result<BatchProgress> done = run_rows(job);
  if (!done.ok()) {
    display.finish(progress, "interrupted");
    return explain_stop(done.status(), flags, journal);
  }
  display.finish(done.value(), "done");
  warn_of(ignored);
  if (input.hash() != summary.hash) {
    return invalid_argument(flags.input +
                            " changed while it was read; no output was written, and " +
                            journal_path(flags) + " is of no use any more");
  }
  SPILLWAY_RETURN_IF_ERROR(conclude(flags, summary, std::move(journal)));
  print_summary(done.value(), flags, model.predicted_tokens_per_second);
  return {};
}

}  // namespace spillway
