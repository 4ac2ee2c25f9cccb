// Where the rows of a batch come from and where their results go: a file and its journal
// (file_rows.h), or a queue in a database that many workers share (server/queue/queue_rows.h).
//
// Thread rule: all calls on the thread of run_rows().
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/status.h"
#include "scheduler/journal.h"
#include "server/batches/batch_line.h"

namespace spillway {

struct BatchRow {
  int64_t key = 0;     // > 0; names the row until it has its result
  BatchLine line;      // One with an error does not run: the error is its result.
  std::string run_id;  // 16 hex digits, in the ids of its answer
  uint64_t seed = 0;   // Of samples of lines without one
};

class BatchRows {
 public:
  enum class Next : uint8_t { kRow, kLater, kEnd };

  virtual ~BatchRows() = default;

  // The next row to run. kLater: there is none now, ask again. kEnd: there will be none.
  // `in_flight`: rows that were given and have no result yet. `room`: sequences that may start now,
  // at least 1.
  virtual Result<Next> next(int64_t in_flight, int64_t room, BatchRow* row) = 0;

  // The row's result, by its key; safe after the next commit().
  virtual Status finish(const JournalRow& result) = 0;
  virtual Status commit() = 0;

  // The row failed in every try, by faults of the machine, the last of which is `cause`; it has no
  // result.
  virtual Status set_aside(int64_t key, const Status& cause) = 0;

  // Called a few times a second while rows run.
  virtual Status tick() { return {}; }

  // What is left when next() has said kEnd and all rows have ended: OK when each has its result.
  virtual Status left_over() const { return {}; }

  // Results so far, those of earlier runs included.
  virtual JournalCounts counts() const = 0;
};

}  // namespace spillway
