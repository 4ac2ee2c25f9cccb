// The result files of a batch from its journal: answers, and lines that failed or did not run.
// Blocks for the disk; one thread.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/status.h"
#include "scheduler/journal.h"
#include "server/api/completion.h"
#include "server/batches/batch_input.h"
#include "server/batches/batch_record.h"
#include "server/batches/file_store.h"

namespace spillway {

struct BatchResults {
  std::string output_file;  // Empty: no line has an answer
  std::string error_file;   // Empty: none failed
  int64_t completed = 0, failed = 0;
};

// `end`: where kExpired or kCancelled, lines without a result are written as errors that say so;
// else there are none. `input`: null if it is gone, and then there are no such errors. `now`: Unix
// seconds. Files that an earlier try left are replaced. At an error neither file is there.
Result<BatchResults> write_batch_results(const Journal& journal, BatchInput* input,
                                         const BatchRecord& record, BatchState end,
                                         const ApiContext& context, int64_t now, FileStore& files);

}  // namespace spillway
