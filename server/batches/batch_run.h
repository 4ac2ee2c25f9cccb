// The core of a batch: passes rows from where they come from through the scheduler to where their
// results go (batch_rows.h), in bounded memory, many in flight at once.
//
// A row's own fault (a bad line, numbers that are not finite, a crash of the program) becomes its
// result. A fault of the machine (a read that fails, bytes that do not match their checksum, no
// memory) does not: the row runs again, and if that does not help the run stops without a result
// for it.
//
// Thread rule: run_rows() is called on one thread and returns there; answers arrive from the
// engine thread through a mailbox.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "scheduler/scheduler.h"
#include "server/api/completion.h"
#include "server/batches/batch_line.h"
#include "server/batches/batch_progress.h"
#include "server/batches/batch_retry.h"
#include "server/batches/batch_rows.h"
#include "server/batches/crash_mark.h"

namespace spillway {

struct BatchJob {
  Scheduler* scheduler = nullptr;
  const ApiContext* context = nullptr;
  int64_t rows = 0;  // In all, for the progress that is shown

  std::function<bool()> interrupted;
  std::function<void(const BatchProgress&)> show;
  IgnoredNames* ignored = nullptr;  // Filled from the rows that run
  CrashMark::Slots marks;           // Updated with the rows in the block; a slot for each sequence
  double grace_seconds = 5;         // Running rows may finish within this time after an interrupt
  std::optional<int64_t> errors_max;  // Limit on rows that fail by their own fault, over all runs
  BatchRetry::Limits retry;
  // Sequences in flight at most; 0: as many as the scheduler's queue takes.
  int64_t sequences_max = 0;
  // Added to the priority of every request: above 0 those of others go first.
  int32_t priority = 0;
  uint64_t client = 0;    // Of every request
  uint64_t salt_key = 0;  // Likewise: CacheSalt::key
  // Limit on the rows in flight together, by answer_bytes() and the bytes of their lines.
  uint64_t answers_bytes_max = UINT64_MAX;
};

// Runs all rows until there are no more. All finished rows are committed when it returns, with an
// error too, unless the commit fails. kCancelled: interrupted. kDeviceLost, kIoError, kCorruption,
// kCapacity: the engine fails rows, or too many failed by themselves; rows that the engine failed
// have no result. Also errors of `rows`. Blocks; checks `interrupted` a few times a second.
Result<BatchProgress> run_rows(const BatchJob& job, BatchRows& rows);

}  // namespace spillway
