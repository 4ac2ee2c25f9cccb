// The heart of a batch: rows of the input through the scheduler into the journal, in bounded
// memory, many in flight at once.
//
// What a row's own fault is (a bad line, numbers that are not finite, a crash of the program)
// becomes its result. What the machine does to it (a read that fails, bytes that do not match their
// checksum, no memory) does not: the row runs again, and if that does not help the run stops
// without one.
//
// Thread rule: run_rows() is called on one thread and returns there; answers arrive from the
// engine thread through a mailbox.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>

#include "kernels/base/status.h"
#include "scheduler/journal.h"
#include "scheduler/scheduler.h"
#include "server/api/completion.h"
#include "server/cli/batch/batch_input.h"
#include "server/cli/batch/batch_line.h"
#include "server/cli/batch/batch_progress.h"
#include "server/cli/batch/batch_retry.h"
#include "server/cli/common/interrupt.h"

namespace spillway {

struct BatchJob {
  BatchInput* input = nullptr;  // At its first line
  Journal* journal = nullptr;
  Scheduler* scheduler = nullptr;
  const ApiContext* context = nullptr;
  std::string run_id;
  uint64_t seed = 0;
  int64_t rows = 0;  // Of the input

  std::function<bool()> interrupted;
  std::function<void(const BatchProgress&)> show;
  IgnoredNames* ignored = nullptr;    // Of the rows that run
  CrashMark::Slots marks;             // Learn which rows are in the block; a slot for each sequence
  double grace_seconds = 5;           // What runs may finish within this time after an interrupt
  std::optional<int64_t> errors_max;  // Rows that may fail by their own fault, of all runs
  BatchRetry::Limits retry;
  // Of the rows in flight together, by answer_bytes() and the bytes of their lines.
  uint64_t answers_bytes_max = UINT64_MAX;
};

// Runs every row that the journal has no result of; suspects of a crash last. Everything finished
// is committed when it returns, whatever it returns, unless that fails. kCancelled: interrupted.
// kInvalidArgument: the input has changed. kDeviceLost, kIoError, kCorruption, kCapacity: the
// engine fails rows, or too many failed by themselves; what it failed has no result. Blocks; looks
// at `interrupted` a few times a second.
Result<BatchProgress> run_rows(const BatchJob& job);

// Finds custom_ids that come again. Remembers 128 bits of each, so millions fit.
class CustomIds {
 public:
  // Turns a line whose custom_id an earlier line has into an error.
  void check(BatchLine* line);

 private:
  std::unordered_set<std::string> seen_;  // Digests
};

}  // namespace spillway
