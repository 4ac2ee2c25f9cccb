// `spillway batch`: completes a file of requests, row by row, and survives being killed.
//
//   input file -> BatchInput -> BatchOrder -> BatchLine -> scheduler -> Journal (SQLite) -> output
//   file
//
// The output appears at the end, whole and in input order; until then everything finished is in
// OUTPUT.journal, from which --resume continues and --export writes the finished lines.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "scheduler/journal.h"
#include "server/batches/batch_retry.h"
#include "server/cli/common/served_model.h"
#include "server/cli/flags/command_line.h"

namespace spillway {

struct BatchFlags {
  std::string input;
  std::string output;
  std::string export_journal;  // Set: only writes its lines to `output`
  bool resume = false;
  bool dry_run = false;
  bool overwrite = false;
  bool retry_errors = false;  // As resume, and failed lines run again
  bool fail_on_errors = false;
  std::optional<int64_t> max_errors;
  // Memory of prompts and answers in flight together (answer_bytes()); rows wait when it is full.
  // The default is part of kProcessBytes, so that no plan is smaller for it.
  int64_t answers_bytes_max = int64_t{128} << 20;
  bool no_reorder = false;  // Lines start in the order of the input
  std::string progress = "auto";
};

// Arguments of run_batch() besides the flags.
struct BatchSetup {
  uint64_t seed = 0;
  bool shares_beginnings = true;  // --prefix-cache is not off
  JournalHead settings;           // All flags that change results, by name
  std::function<Result<ServedModel>(const OpenFor&)> open;
  BatchRetry::Limits retry;
};

struct BatchOutcome {
  int64_t failed = 0;  // Lines of the output that have an error
};

// Runs the batch and prints its summary on stderr. Errors as of Status: kInvalidArgument and
// kNotFound for wrong input, kCancelled when interrupted; others when the machine failed or too
// many lines did. Finished lines are in the journal then, and the message explains how to resume.
// Main thread; blocks. Installs signal handlers while it runs.
Result<BatchOutcome> run_batch(const BatchFlags& flags, const BatchSetup& setup);

// Writes the results in the journal flags.export_journal to flags.output, in input order.
Status export_batch(const BatchFlags& flags);

Command batch_command(const OpenModel& open);

}  // namespace spillway
