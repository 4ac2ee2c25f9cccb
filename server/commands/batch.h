// `spillway batch`: completes a file of requests, row by row, and survives being killed.
//
//   input file -> BatchInput -> BatchLine -> scheduler -> Journal (SQLite) -> output file
//
// The output appears at the end, whole and in input order; until then everything finished is in
// OUTPUT.journal, from which --resume goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/status.h"
#include "scheduler/journal.h"
#include "server/commands/served_model.h"
#include "server/config/command_line.h"

namespace spillway {

struct BatchFlags {
  std::string input;
  std::string output;
  bool resume = false;
  bool dry_run = false;
  std::string progress = "auto";
};

// What run_batch() is given besides the flags.
struct BatchSetup {
  uint64_t seed = 0;
  JournalHead settings;  // All flags that change results, by name
  std::function<Result<ServedModel>(const OpenFor&)> open;
};

// Runs the batch and prints its summary on stderr. Errors as of Status: kInvalidArgument and
// kNotFound for wrong input, kCancelled when interrupted (the resume command has been printed).
// Main thread; blocks. Installs signal handlers while it runs.
Status run_batch(const BatchFlags& flags, const BatchSetup& setup);

// The settings of `flags` that change what a request is answered.
JournalHead result_settings(const EngineFlags& flags);

Command batch_command(const OpenModel& open);

}  // namespace spillway
