// The queue as a worker sees it: it claims runs of rows, renews its lease, writes results, gives
// back what it cannot do. What a worker holds whose lease is over, others take.
//
// Every call is one transaction and may be made again after kIoError.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/queue/postgres.h"

namespace spillway {

// For PgOptions::settings of a worker's connection. Its queries look at a few rows of tables that
// may have millions, which the planner cannot know of ranges that are parameters: it would read
// all.
constexpr const char* kWorkerSettings =
    "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off;"
    " SET max_parallel_workers_per_gather = 0; SET jit = off";

// Who works, and what it may answer.
struct QueueWorker {
  int64_t id = 0;  // Drawn at random, > 0
  std::string name;
  std::vector<std::string> models;  // Names of the model that it has; the first is shown
  std::string identity;  // Everything that changes results: jobs are answered by equal ones
  std::string format, kv_format, kv_rule;
  double lease_seconds = 60;
  // The run id of a job that it is the first to begin, from the input's hash and the seed.
  std::function<std::string(const std::string& input_hash, uint64_t seed)> run_id;
};

struct ClaimedRow {
  int64_t number = 0;  // Of its line in the file
  int64_t position = 0;
  bool too_long = false, repeats_id = false;
  std::string line;
};

struct Claim {
  int64_t id = 0, generation = 0;
  int64_t job = 0;
  int64_t job_rows = 0;
  std::string run_id;
  uint64_t seed = 0;
  // Owners vanished with it again and again: its rows run with no others beside them, after
  // begin_alone().
  bool apart = false;
  // ... and it is one row, which has had all its tries, some of them alone: its result is that it
  // ends the program.
  bool convicted = false;
  std::vector<ClaimedRow> rows;
};

// Makes the worker known, or renews its lease. Gives back what it holds and does not know of
// (`known`: the claims that it does): a claim whose answer was lost, or that reached the server
// late, would else be renewed with the others and never run. Ends jobs whose deadline is over.
// Returns those of `jobs` that have ended.
Result<std::vector<int64_t>> renew_lease(PgConnection& connection, const QueueWorker& worker,
                                         const std::vector<int64_t>& known,
                                         const std::vector<int64_t>& jobs);

// Of one claim.
struct ClaimRoom {
  int64_t rows = 1;
  int64_t bytes = int64_t{32} << 20;  // Of lines; one row may have more
};

// Claims rows of the first job that this worker may answer: fewer than there is room for when what
// is left is to be shared with others; never more. `take_over`: also what workers that vanished
// held, its own never. None: there is nothing for it now.
Result<std::optional<Claim>> claim_rows(PgConnection& connection, const QueueWorker& worker,
                                        const ClaimRoom& room, bool take_over);

struct ClaimId {
  int64_t id = 0, generation = 0;
};

// Says that a claim apart runs now: should its worker vanish, its rows are why.
Status begin_alone(PgConnection& connection, const QueueWorker& worker, const ClaimId& claim);

// Whether a job that this worker may answer has rows without a result, set aside ones left out.
Result<bool> has_work(PgConnection& connection, const QueueWorker& worker);

struct RowResult {
  int64_t claim = 0, generation = 0;
  int64_t job = 0, job_rows = 0;
  int64_t row = 0;  // ClaimedRow::number
  bool failed = false;
  int64_t prompt_tokens = 0, generated_tokens = 0;
  std::string line;
};

struct WrittenResults {
  int64_t written = 0;
  int64_t late = 0;   // Not written: the claim is another's now, and the row has no result yet
  int64_t ended = 0;  // Not written: the job was cancelled or has expired
};

// Writes results, and ends the claims all of whose rows have theirs.
Result<WrittenResults> write_results(PgConnection& connection, const QueueWorker& worker,
                                     const std::vector<RowResult>& results,
                                     const std::vector<ClaimId>& done);

// Lets others take the claims, after `seconds`. `fault`: the machine failed their rows; a claim
// that too many machines have failed is set aside.
Status give_back(PgConnection& connection, const QueueWorker& worker,
                 const std::vector<ClaimId>& claims, double seconds, const std::string& fault);

// Gives back what the worker still holds, and forgets the worker.
Status leave_queue(PgConnection& connection, const QueueWorker& worker);

}  // namespace spillway
