// Runs the batches of a server, on two threads of its own. One runs the lines, batch by batch, the
// oldest first, beside the requests of clients (which go first). The other does what takes no
// engine and must not wait for a batch of days: it looks files through, ends batches that are
// cancelled or have expired, and makes files of results. A batch's state, and every finished line,
// survive a crash; start() goes on with what is unfinished.
//
// The machine's faults end no batch: on a full disk, or where the engine fails lines again and
// again, it waits and tries again (x_status_detail says so), and those behind it run meanwhile. So
// does a batch that began with another model than is served now, or with other number formats,
// until that one is served again.
//
// Methods from any thread. Outlives nothing that it is given.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/scheduler.h"
#include "server/api/completion.h"
#include "server/batches/batch_run.h"
#include "server/batches/batch_table.h"
#include "server/batches/crash_mark.h"
#include "server/batches/file_store.h"

namespace spillway {

struct BatchWorkerOptions {
  std::string directory;       // Of journals
  int64_t lines_max = 50'000;  // Of one batch
  int64_t sequences_max = 0;   // In flight at once; 0: as many as the scheduler's queue takes
  uint64_t answers_bytes_max = uint64_t{1} << 30;  // Prompts and answers of lines in flight
  uint64_t seed = 0;                               // For lines without one
  std::string identity;                            // Of the model and all that changes results
  double retry_seconds = 30;  // Pause before a batch that the machine failed is tried again
  CrashMark::Slots marks;     // Of the lines in the block
};

// The priority of lines beside the requests of clients: behind all that name none.
constexpr int32_t kBatchPriority = 1'000'000;

// The run that names a batch in a crash mark.
int64_t crash_run_of(const std::string& batch);

class BatchWorker {
 public:
  // All outlive the worker. `context` as for requests over HTTP.
  BatchWorker(FileStore& files, BatchTable& batches, Scheduler& scheduler,
              const ApiContext& context, BatchWorkerOptions options);
  ~BatchWorker();  // stop()
  BatchWorker(const BatchWorker&) = delete;
  BatchWorker& operator=(const BatchWorker&) = delete;

  // `crash`: the lines that ran when the program crashed last; its run is the batch's number.
  void start(CrashMark::Crash crash = {});

  // Something may be to be done: a batch was added or is to be cancelled.
  void wake();

  // Ends with the finished lines kept; the next start() goes on. Idempotent.
  void stop();

  // The lines of the batch that runs now, which its record has only at the end of a state.
  struct Progress {
    std::string id;  // Empty: none runs
    int64_t completed = 0, failed = 0;
    int64_t prompt_tokens = 0, generated_tokens = 0;
    int64_t cached_tokens = 0;
    double tokens_per_second = 0;
    double seconds_left = -1;  // Negative: too early for an estimate
  };
  Progress progress() const;

  // Lines with a result, of all batches in progress that have run since the start.
  struct Results {
    int64_t completed = 0, failed = 0;
  };
  Results results() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Part : uint8_t { kLines, kRest };  // What a thread does
  struct Wait {
    BatchState state;  // In which it waits
    Clock::time_point until;
  };
  using Waits = std::map<std::string, Wait>;  // By batch

  void run_thread(Part part);
  std::optional<BatchRecord> choose(Part part, const Waits& waits, Clock::time_point* until);
  void release(const std::string& id);
  void remove_expired();
  void remove_stray_journals();
  Status step(const BatchRecord& record);
  Status step_of_state(const BatchRecord& record);
  Status validate(const BatchRecord& record);
  Status may_run(const BatchRecord& record) const;
  Status run_lines(const BatchRecord& record);
  Status finish(const BatchRecord& record, BatchState end);
  bool must_leave(const std::string& id);
  std::string journal_path(const std::string& id) const;
  JournalHead head_of(const BatchRecord& record, const std::string& hash) const;
  Result<Journal> open_journal(const BatchRecord& record, const std::string& hash);
  Result<Journal> open_results(const BatchRecord& record, BatchState end) const;

  FileStore& files_;
  BatchTable& batches_;
  Scheduler& scheduler_;
  const ApiContext& context_;
  const BatchWorkerOptions options_;

  mutable std::mutex mutex_;  // For the members down to the blank line
  std::condition_variable changed_;
  bool stopping_ = false;
  uint64_t wakes_ = 0;
  Progress progress_;
  std::map<std::string, Results> results_;  // By batch in progress
  std::set<std::string> busy_;              // Batches that a thread has in hand

  CrashMark::Crash crash_;  // The thread's that runs lines
  std::thread lines_, rest_;
};

}  // namespace spillway
