// The heart of a batch: rows of the input through the scheduler into the journal, in bounded
// memory, many in flight at once.
//
// Thread rule: run_rows() is called on one thread and returns there; answers arrive from the
// engine thread through a mailbox.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>

#include "kernels/base/status.h"
#include "scheduler/journal.h"
#include "scheduler/scheduler.h"
#include "server/api/completion.h"
#include "server/commands/batch_input.h"
#include "server/commands/batch_line.h"
#include "server/commands/batch_progress.h"

namespace spillway {

// A row that ran during this many crashes of the program gets an error instead of another try.
constexpr int64_t kCrashesMax = 2;

struct BatchJob {
  BatchInput* input = nullptr;
  Journal* journal = nullptr;
  Scheduler* scheduler = nullptr;
  const ApiContext* context = nullptr;
  std::string run_id;
  uint64_t seed = 0;
  int64_t rows = 0;  // Of the input

  std::function<bool()> interrupted;
  std::function<void(const BatchProgress&)> show;
  IgnoredNames* ignored = nullptr;  // Of the rows that run
  double grace_seconds = 5;         // What runs may finish within this time after an interrupt
};

// Runs every row that the journal has no result of. Everything finished is committed when it
// returns, whatever it returns. kCancelled: interrupted. kDeviceLost: the engine is out of order;
// rows that it took down have no result. Blocks; looks at `interrupted` a few times a second.
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
