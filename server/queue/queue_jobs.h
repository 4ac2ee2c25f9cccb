// The jobs of the queue, as who hands them in sees them: submit, look, fetch, cancel. A job is one
// file of batch lines; each of its rows gets exactly one result.
//
// Every call is one transaction, and may be made again after kIoError: what a lost answer leaves
// unknown, the next try finds done.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/batches/batch_input.h"
#include "server/queue/postgres.h"

namespace spillway {

struct JobSpec {
  std::string name;  // The file's, for people
  std::string model;
  std::string format, kv_format, kv_rule;  // That a worker must have; empty: any
  uint64_t seed = 0;
  int64_t priority = 0;                    // Lower ones go first.
  std::optional<double> deadline_seconds;  // From now; rows that did not run by then never do
  int64_t attempts_max = 5;                // Of a row whose worker vanishes, or whose machine fails
  // Makes it a job of its own though an equal one is there: a text that no other job has. Empty:
  // the same file with the same settings is the same job.
  std::string nonce;
};

struct SubmittedJob {
  int64_t id = 0;
  int64_t rows = 0;
  bool existed = false;  // An equal job was there; nothing was added.
};

// Reads the input twice. `progress`: called with the rows sent so far. kInvalidArgument: the file
// has no lines, or changed.
Result<SubmittedJob> submit_job(PgConnection& connection, const JobSpec& spec, BatchInput& input,
                                const std::function<void(int64_t rows)>& progress);

struct JobStatus {
  int64_t id = 0;
  std::string name, model;
  std::string state;     // queued, running, done, cancelled, expired
  std::string identity;  // Empty: no worker has begun with it.
  int64_t priority = 0;
  int64_t rows = 0, finished = 0, failed = 0;
  int64_t claimed = 0;    // Rows in the hands of live workers
  int64_t abandoned = 0;  // Rows given back, or of workers that vanished
  int64_t set_aside = 0;  // Rows that too many machines failed; they wait for retry_job()
  std::string cause;      // Of the last of them
  int64_t prompt_tokens = 0, generated_tokens = 0;
  double age_seconds = 0;  // Since it was submitted
  double run_seconds = 0;  // Since its first claim, until it ended
  std::optional<double> deadline_in_seconds;
  int64_t workers = 0;       // That live and may take its rows
  int64_t workers_else = 0;  // That live and may not: another model, other formats

  bool final() const { return state != "queued" && state != "running"; }
};

Result<JobStatus> job_status(PgConnection& connection, int64_t job);  // kNotFound
Result<std::vector<JobStatus>> list_jobs(PgConnection& connection);   // By id

// The first lines of the job that a worker with a model of one of these names would begin with, and
// how many rows of it have no result; 0 rows: there is none.
struct QueueSample {
  int64_t rows = 0;
  uint64_t seed = 0;
  std::vector<std::string> lines;
};
Result<QueueSample> sample_queue(PgConnection& connection, const std::vector<std::string>& models,
                                 int64_t lines_max);

struct WorkerStatus {
  std::string name, model, identity;
  double age_seconds = 0;
  double expires_in_seconds = 0;  // Negative: it vanished
  int64_t claims = 0;
};
Result<std::vector<WorkerStatus>> list_workers(PgConnection& connection);

// The job ends; its rows that have no result will have none. OK if it has ended already. kNotFound.
Status cancel_job(PgConnection& connection, int64_t job);

// Rows that were set aside may run again. Returns how many. kNotFound.
Result<int64_t> retry_job(PgConnection& connection, int64_t job);

// Removes a job that has ended, with all its rows. kNotFound; kCapacity: it has not ended.
Status delete_job(PgConnection& connection, int64_t job);

// Ends jobs whose deadline is over.
Status expire_jobs(PgConnection& connection);

// Calls `line` for each row of a job that has ended, by ascending number: with its result, or, of a
// cancelled or expired job, with its error. kCapacity: it has not ended.
Status fetch_job(PgConnection& connection, int64_t job,
                 const std::function<Status(std::string_view line)>& line);

}  // namespace spillway
