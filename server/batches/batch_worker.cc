#include "server/batches/batch_worker.h"

#include <pthread.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "server/batches/batch_check.h"
#include "server/batches/batch_input.h"
#include "server/batches/batch_results.h"
#include "server/log.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

const std::vector<BatchRecord> kNone;

int64_t unix_now() {
  return static_cast<int64_t>(std::time(nullptr));
}

// 16 hex digits that name the run of a batch: its lines have the same ids after a new start.
std::string run_id_of(const std::string& batch) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(batch.data(), batch.size())));
  return text;
}

uint64_t number_of(const std::string& owner) {
  return owner.empty() ? 0 : XXH3_64bits(owner.data(), owner.size()) | 1;
}

bool expired(const BatchRecord& record) {
  return record.expires_at > 0 && unix_now() >= record.expires_at;
}

}  // namespace

BatchWorker::BatchWorker(FileStore& files, BatchTable& batches, Scheduler& scheduler,
                         const ApiContext& context, BatchWorkerOptions options)
    : files_(files),
      batches_(batches),
      scheduler_(scheduler),
      context_(context),
      options_(std::move(options)) {}

BatchWorker::~BatchWorker() {
  stop();
}

void BatchWorker::start(std::vector<int64_t> crashed) {
  crashed_ = std::move(crashed);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "spillway-batch");
    loop();
  });
}

void BatchWorker::wake() {
  const std::lock_guard lock(mutex_);
  ++wakes_;
  changed_.notify_all();
}

void BatchWorker::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

BatchWorker::Progress BatchWorker::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

BatchWorker::Results BatchWorker::results() const {
  const std::lock_guard lock(mutex_);
  Results all;
  for (const auto& [id, results] : results_) {
    all.completed += results.completed;
    all.failed += results.failed;
  }
  return all;
}

std::string BatchWorker::journal_path(const std::string& id) const {
  return options_.directory + "/" + id + ".journal";
}

// Files that have expired go, but for those that a batch still needs.
void BatchWorker::remove_expired(const std::vector<BatchRecord>& unfinished) {
  std::set<std::string> in_use;
  for (const BatchRecord& record : unfinished) in_use.insert(record.input_file);
  if (const auto gone = files_.expire(unix_now(), in_use); !gone.ok()) {
    log_error("Files that have expired cannot be removed: " + std::string(gone.status().message()));
  }
}

// A batch that has to wait, after an error, lets those behind it go first. One that is cancelled
// meanwhile waits no longer.
void BatchWorker::loop() {
  struct Wait {
    BatchState state;  // In which it waits
    Clock::time_point until;
  };
  std::map<std::string, Wait> waits;  // By batch
  for (;;) {
    uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      seen = wakes_;
      progress_ = {};
    }
    const auto unfinished = batches_.unfinished();
    if (unfinished.ok()) {
      remove_expired(unfinished.value());
    } else {
      log_error("Batches: " + std::string(unfinished.status().message()));
    }
    Clock::time_point until =
        Clock::now() + std::chrono::minutes(1);  // Files expire by the minute.
    const BatchRecord* next = nullptr;
    for (const BatchRecord& record : unfinished.ok() ? unfinished.value() : kNone) {
      const auto wait = waits.find(record.id);
      if (wait == waits.end() || wait->second.state != record.state ||
          wait->second.until <= Clock::now()) {
        next = &record;
        break;
      }
      until = std::min(until, wait->second.until);
    }
    if (next == nullptr) {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, until, [&] { return stopping_ || wakes_ != seen; });
      continue;
    }
    const Status status = run_one(*next);
    if (status.code() == Code::kDeviceLost) return;  // `serve` ends, too.
    waits.erase(next->id);
    if (!status.ok() && status.code() != Code::kCancelled) {
      const auto pause = std::chrono::duration<double>(options_.retry_seconds);
      waits[next->id] = {next->state,
                         Clock::now() + std::chrono::duration_cast<Clock::duration>(pause)};
    }
  }
}

// One step of a batch's way. An error that is the machine's is noted in it and returned.
Status BatchWorker::run_one(const BatchRecord& record) {
  Status status;
  if (record.state == BatchState::kCancelling) {
    status = finish(record, BatchState::kCancelled);
  } else if (record.state == BatchState::kValidating) {
    status = validate(record);
  } else if (expired(record)) {
    status = finish(record, BatchState::kExpired);
  } else if (record.state == BatchState::kInProgress) {
    status = run_lines(record);
  } else {
    status = finish(record, BatchState::kCompleted);
  }
  const auto after = batches_.get(record.id);
  if (!after.ok() || after->state != BatchState::kInProgress) {
    const std::lock_guard lock(mutex_);
    results_.erase(record.id);
  }
  const bool waits = !status.ok() && status.code() != Code::kCancelled;
  const std::string detail =
      waits ? "waiting after: " + std::string(status.message()) : std::string();
  if (waits) log_error(record.id + ": " + std::string(status.message()));
  if (waits || !record.detail.empty()) {
    (void)batches_.update(record.id, [&](BatchRecord& now) {
      now.detail = detail;
      return Status();
    });
  }
  return status;
}

// Whether the batch must not go on now: the server stops, or the batch is cancelled or expires.
bool BatchWorker::must_leave(const std::string& id) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return true;
  }
  const auto found = batches_.get(id);
  if (!found.ok()) return found.status().code() == Code::kNotFound;
  const BatchRecord& record = found.value();
  return is_final(record.state) || record.state == BatchState::kCancelling ||
         (record.state != BatchState::kValidating && expired(record));
}

Status BatchWorker::validate(const BatchRecord& record) {
  BatchCheck check;
  const auto file = files_.find(record.owner, record.input_file);
  if (!file.ok()) {
    check.faults.push_back({"file_not_found", "The input file was deleted.", "input_file_id", 0});
  } else {
    SPILLWAY_ASSIGN_OR_RETURN(BatchInput input,
                              BatchInput::open(files_.path_of(record.input_file)));
    SPILLWAY_ASSIGN_OR_RETURN(check,
                              check_batch(input, record.endpoint, context_, options_.lines_max,
                                          [&] { return must_leave(record.id); }));
  }
  return batches_
      .update(record.id,
              [&](BatchRecord& now) {
                if (now.state != BatchState::kValidating) return Status();  // To be cancelled
                now.model = check.model.empty() ? context_.model_names.front() : check.model;
                now.faults = check.faults;
                if (check.faults.empty()) now.total = check.summary.rows;
                now.enter(check.faults.empty() ? BatchState::kInProgress : BatchState::kFailed,
                          unix_now());
                return Status();
              })
      .status();
}

JournalHead BatchWorker::head_of(const BatchRecord& record, const std::string& hash) const {
  return {{"batch", record.id}, {"input", hash}, {"identity", options_.identity}};
}

Result<Journal> BatchWorker::open_journal(const BatchRecord& record, const std::string& hash) {
  const std::string path = journal_path(record.id);
  if (!std::filesystem::exists(path)) return Journal::create(path, head_of(record, hash));
  SPILLWAY_ASSIGN_OR_RETURN(Journal journal, Journal::open(path));
  if (const Status same = journal.check(head_of(record, hash)); !same.ok()) {
    // Another model or other settings: half of the answers would be another's.
    log_warning(record.id + " runs anew: " + std::string(same.message()));
    SPILLWAY_RETURN_IF_ERROR(Journal::discard(std::move(journal)));
    return Journal::create(path, head_of(record, hash));
  }
  SPILLWAY_RETURN_IF_ERROR(journal.adopt(head_of(record, hash)));
  if (!crashed_.empty()) {
    log_warning("The last run crashed with " + std::to_string(crashed_.size()) + " lines of " +
                record.id + " in the block. They run last, and apart from the others.");
    SPILLWAY_RETURN_IF_ERROR(journal.blame(std::exchange(crashed_, {})));
  }
  return journal;
}

Status BatchWorker::run_lines(const BatchRecord& record) {
  SPILLWAY_ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(files_.path_of(record.input_file)));
  SPILLWAY_ASSIGN_OR_RETURN(const InputSummary summary, summarize(input));
  SPILLWAY_ASSIGN_OR_RETURN(Journal journal, open_journal(record, summary.hash));
  BatchJob job;
  job.input = &input;
  job.journal = &journal;
  job.scheduler = &scheduler_;
  job.context = &context_;
  job.run_id = run_id_of(record.id);
  job.seed = options_.seed;
  job.rows = summary.rows;
  job.sequences_max = options_.sequences_max;
  job.priority = kBatchPriority;
  job.client = number_of(record.owner);
  job.salt_key = job.client;
  job.answers_bytes_max = options_.answers_bytes_max;
  job.marks = options_.marks;
  job.grace_seconds = 0;
  job.interrupted = [&] { return must_leave(record.id); };
  job.show = [&](const BatchProgress& now) {
    const std::lock_guard lock(mutex_);
    results_[record.id] = {now.lines_done - now.lines_failed, now.lines_failed};
    progress_ = {record.id,
                 now.lines_done - now.lines_failed,
                 now.lines_failed,
                 now.prompt_tokens,
                 now.generated_tokens,
                 now.tokens_per_second()};
  };
  SPILLWAY_RETURN_IF_ERROR(run_rows(job).status());
  return batches_
      .update(record.id,
              [&](BatchRecord& now) {
                if (now.state == BatchState::kInProgress) {
                  now.enter(BatchState::kFinalizing, unix_now());
                }
                return Status();
              })
      .status();
}

// Makes files of what there is, and ends the batch.
Status BatchWorker::finish(const BatchRecord& record, BatchState end) {
  const std::string path = journal_path(record.id);
  BatchResults results;
  JournalCounts counts;
  const bool ran = std::filesystem::exists(path);
  if (ran || end == BatchState::kExpired) {
    SPILLWAY_ASSIGN_OR_RETURN(BatchInput input,
                              BatchInput::open(files_.path_of(record.input_file)));
    SPILLWAY_ASSIGN_OR_RETURN(const InputSummary summary, summarize(input));
    SPILLWAY_ASSIGN_OR_RETURN(const Journal journal, open_journal(record, summary.hash));
    SPILLWAY_ASSIGN_OR_RETURN(
        results, write_batch_results(journal, input, record, end, context_, unix_now(), files_));
    counts = journal.counts();
  }
  const auto ended = batches_.update(record.id, [&](BatchRecord& now) {
    if (!may_follow(now.state, end)) {
      return Status(Code::kCancelled, "the batch is to be cancelled");
    }
    now.output_file = results.output_file;
    now.error_file = results.error_file;
    now.completed = results.completed;
    now.failed = results.failed;
    now.prompt_tokens = counts.prompt_tokens;
    now.generated_tokens = counts.generated_tokens;
    now.enter(end, unix_now());
    return Status();
  });
  if (!ended.ok()) {  // The files are nobody's.
    for (const std::string& id : {results.output_file, results.error_file}) {
      if (!id.empty()) (void)files_.remove(record.owner, id);
    }
    return ended.status();
  }
  if (ran || end == BatchState::kExpired) SPILLWAY_RETURN_IF_ERROR(Journal::remove(path));
  return {};
}

}  // namespace spillway
