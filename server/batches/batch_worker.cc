#include "server/batches/batch_worker.h"

#include <pthread.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <new>
#include <set>
#include <system_error>
#include <utility>

#include "server/batches/batch_check.h"
#include "server/batches/batch_input.h"
#include "server/batches/batch_results.h"
#include "server/batches/file_rows.h"
#include "server/log.h"

namespace spillway {
namespace {

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

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

constexpr const char* kSetAside = ".unreadable";

// Keeps a file that cannot be read, out of the way.
Status set_aside(const std::string& path) {
  std::error_code error;
  std::filesystem::rename(path, path + kSetAside, error);
  if (error) return {Code::kIoError, path + ": " + error.message()};
  return Journal::remove(path);  // And SQLite's files beside it
}

bool serves(const ApiContext& context, const std::string& name) {
  return std::find(context.model_names.begin(), context.model_names.end(), name) !=
         context.model_names.end();
}

}  // namespace

int64_t crash_run_of(const std::string& batch) {
  return static_cast<int64_t>(XXH3_64bits(batch.data(), batch.size()));
}

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

void BatchWorker::start(CrashMark::Crash crash) {
  crash_ = std::move(crash);
  lines_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "spillway-batch");
    run_thread(Part::kLines);
  });
  rest_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "spillway-files");
    remove_stray_journals();
    run_thread(Part::kRest);
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
  for (std::thread* thread : {&lines_, &rest_}) {
    if (thread->joinable()) thread->join();
  }
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
void BatchWorker::remove_expired() {
  std::set<std::string> in_use;
  batches_.for_each_unfinished([&](const BatchRecord& record) {
    in_use.insert(record.input_file);
    return true;
  });
  if (const auto gone = files_.expire(unix_now(), in_use); !gone.ok()) {
    log_error("Files that have expired cannot be removed: " + std::string(gone.status().message()));
  }
}

// Journals of batches that have ended: a crash came between the end and their removal.
void BatchWorker::remove_stray_journals() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory, error)) {
    if (entry.path().extension() != ".journal") continue;
    const auto record = batches_.get(entry.path().stem().string());
    const bool ended =
        record.ok() ? is_final(record->state) : record.status().code() == Code::kNotFound;
    if (ended) (void)Journal::remove(entry.path().string());
  }
}

// A batch that the thread may take in hand, and has then; `until`: when to look again, if none.
std::optional<BatchRecord> BatchWorker::choose(Part part, const Waits& waits,
                                               Clock::time_point* until) {
  std::optional<BatchRecord> chosen;
  batches_.for_each_unfinished([&](const BatchRecord& record) {
    const bool lines = record.state == BatchState::kInProgress && !expired(record);
    if (lines && record.expires_at > 0) {
      const auto left = std::chrono::seconds(record.expires_at - unix_now());
      *until = std::min(*until, Clock::now() + std::min(left, std::chrono::seconds(60)));
    }
    if (lines != (part == Part::kLines)) return true;
    const auto wait = waits.find(record.id);
    if (wait != waits.end() && wait->second.state == record.state &&
        wait->second.until > Clock::now()) {
      *until = std::min(*until, wait->second.until);
      return true;
    }
    const std::lock_guard lock(mutex_);
    if (stopping_ || !busy_.insert(record.id).second) return true;
    chosen = record;
    return false;
  });
  return chosen;
}

void BatchWorker::release(const std::string& id) {
  const std::lock_guard lock(mutex_);
  busy_.erase(id);
  ++wakes_;  // It may be the other thread's now.
  changed_.notify_all();
}

// A batch that has to wait, after an error, lets those behind it go first. One that is cancelled
// meanwhile waits no longer.
void BatchWorker::run_thread(Part part) {
  Waits waits;
  for (;;) {
    uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      seen = wakes_;
      if (part == Part::kLines) progress_ = {};
    }
    if (part == Part::kRest) remove_expired();
    Clock::time_point until =
        Clock::now() + std::chrono::minutes(1);  // Files expire by the minute.
    const std::optional<BatchRecord> next = choose(part, waits, &until);
    if (!next) {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, until, [&] { return stopping_ || wakes_ != seen; });
      continue;
    }
    const Status status = step(*next);
    waits.erase(next->id);
    if (status.code() == Code::kInfeasible) {  // No try helps while this model is served.
      waits[next->id] = {next->state, Clock::time_point::max()};
    } else if (!status.ok() && status.code() != Code::kCancelled) {
      const auto pause = std::chrono::duration<double>(options_.retry_seconds);
      waits[next->id] = {next->state,
                         Clock::now() + std::chrono::duration_cast<Clock::duration>(pause)};
    }
    release(next->id);
    if (status.code() == Code::kDeviceLost) return;  // `serve` ends, too.
  }
}

// One step of a batch's way. An error that is the machine's is noted in it and returned.
Status BatchWorker::step(const BatchRecord& record) {
  Status status;
  try {
    status = step_of_state(record);
  } catch (const std::bad_alloc&) {  // The batch's fault or the machine's, not the server's end
    status = Status(Code::kCapacity, "there is no memory");
  }
  const auto after = batches_.get(record.id);
  if (!after.ok() || after->state != BatchState::kInProgress) {
    const std::lock_guard lock(mutex_);
    results_.erase(record.id);
  }
  const bool waits = !status.ok() && status.code() != Code::kCancelled;
  std::string detail;
  if (waits) {
    const bool retried = status.code() != Code::kInfeasible;
    detail = (retried ? "waiting after: " : "waiting: ") + std::string(status.message());
    log_error(record.id + ": " + detail);
  }
  if (detail != record.detail) {
    (void)batches_.update(record.id, [&](BatchRecord& now) {
      now.detail = detail;
      return Status();
    });
  }
  return status;
}

Status BatchWorker::step_of_state(const BatchRecord& record) {
  switch (record.state) {
    case BatchState::kCancelling:
      return finish(record, BatchState::kCancelled);
    case BatchState::kValidating:
      return validate(record);
    case BatchState::kInProgress:
      return expired(record) ? finish(record, BatchState::kExpired) : run_lines(record);
    default:
      return finish(record, expired(record) ? BatchState::kExpired : BatchState::kCompleted);
  }
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
  if (file.status().code() == Code::kNotFound) {
    check.faults.push_back({"file_not_found", "The input file was deleted.", "input_file_id", 0});
  } else {
    SPILLWAY_RETURN_IF_ERROR(file.status());
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
                now.models = check.models;
                now.model = check.models.empty() ? context_.model_names.front() : check.models[0];
                now.identity = options_.identity;
                now.faults = check.faults;
                if (check.faults.empty()) now.total = check.summary.rows;
                now.enter(check.faults.empty() ? BatchState::kInProgress : BatchState::kFailed,
                          unix_now());
                return Status();
              })
      .status();
}

// Whether the model that is served may run the batch's lines, as far as its record says.
Status BatchWorker::may_run(const BatchRecord& record) const {
  if (record.identity == options_.identity) return {};  // Under whatever name
  if (exists(journal_path(record.id))) return {};       // Its journal says more.
  for (const std::string& name : record.models) {
    if (!serves(context_, name)) {
      return {Code::kInfeasible, "its lines are for the model '" + name +
                                     "', which is not served now; it goes on when it is, and may "
                                     "be cancelled"};
    }
  }
  return {};
}

JournalHead BatchWorker::head_of(const BatchRecord& record, const std::string& hash) const {
  return {{"batch", record.id}, {"input", hash}, {"identity", options_.identity}};
}

// A journal that cannot be read is kept beside the new one: every line has its input still.
Result<Journal> BatchWorker::open_journal(const BatchRecord& record, const std::string& hash) {
  const std::string path = journal_path(record.id);
  if (!exists(path)) return Journal::create(path, head_of(record, hash));
  Result<Journal> opened = Journal::open(path);
  if (opened.status().code() == Code::kCorruption) {
    log_error(record.id + " runs anew: " + std::string(opened.status().message()) +
              "; that file is kept as " + path + kSetAside);
    SPILLWAY_RETURN_IF_ERROR(set_aside(path));
    return Journal::create(path, head_of(record, hash));
  }
  if (!opened.ok()) return opened.status();
  Journal journal = std::move(opened).value();
  if (const Status same = journal.check(head_of(record, hash)); !same.ok()) {
    if (journal.counts().finished > 0) {
      // Half of the answers would be another's, and what is done is not to be done again.
      std::string began;
      for (const auto& [key, value] : journal.head()) {
        if (key == "identity") began = value;
      }
      return Status(Code::kInfeasible,
                    "it began with another model or other number formats (" + began + "; now " +
                        options_.identity +
                        "); it goes on when they are served again, and may be cancelled, which "
                        "keeps the lines that are done");
    }
    SPILLWAY_RETURN_IF_ERROR(Journal::discard(std::move(journal)));
    return Journal::create(path, head_of(record, hash));
  }
  SPILLWAY_RETURN_IF_ERROR(journal.adopt(head_of(record, hash)));
  if (!crash_.rows.empty() && crash_.run == crash_run_of(record.id)) {
    log_warning("The last run crashed with " + std::to_string(crash_.rows.size()) + " lines of " +
                record.id + " in the block. They run last, and apart from the others.");
    SPILLWAY_RETURN_IF_ERROR(journal.blame(std::exchange(crash_, {}).rows));
  }
  return journal;
}

Status BatchWorker::run_lines(const BatchRecord& record) {
  SPILLWAY_RETURN_IF_ERROR(may_run(record));
  SPILLWAY_ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(files_.path_of(record.input_file)));
  SPILLWAY_ASSIGN_OR_RETURN(const InputSummary summary, summarize(input));
  SPILLWAY_ASSIGN_OR_RETURN(Journal journal, open_journal(record, summary.hash));
  if (record.identity != options_.identity) {
    SPILLWAY_RETURN_IF_ERROR(batches_
                                 .update(record.id,
                                         [&](BatchRecord& now) {
                                           now.identity = options_.identity;
                                           if (now.models.empty()) {
                                             now.model = context_.model_names.front();
                                           }
                                           return Status();
                                         })
                                 .status());
  }
  // A line that was found right stays so, though the model has another name now.
  ApiContext context = context_;
  for (const std::string& name : record.models) {
    if (!serves(context, name)) context.model_names.push_back(name);
  }
  options_.marks.set_run(crash_run_of(record.id));
  FileRows rows(input, /*order=*/nullptr, journal, context, {run_id_of(record.id), options_.seed});
  BatchJob job;
  job.scheduler = &scheduler_;
  job.context = &context;
  job.rows = summary.rows;
  job.sequences_max = options_.sequences_max;
  job.priority = kBatchPriority;
  job.client = number_of(record.owner);
  job.salt_key = job.client;
  job.answers_bytes_max = options_.answers_bytes_max;
  job.marks = options_.marks;
  job.grace_seconds = 0;
  job.interrupted = [&] { return must_leave(record.id); };
  int64_t cached_tokens = record.cached_tokens;  // Of earlier runs and this one
  job.show = [&](const BatchProgress& now) {
    cached_tokens = record.cached_tokens + now.cached_tokens;
    const std::lock_guard lock(mutex_);
    results_[record.id] = {now.lines_done - now.lines_failed, now.lines_failed};
    progress_ = {record.id,
                 now.lines_done - now.lines_failed,
                 now.lines_failed,
                 now.prompt_tokens,
                 now.generated_tokens,
                 cached_tokens,
                 now.tokens_per_second(),
                 now.seconds_left()};
  };
  const Result<BatchProgress> done = run_rows(job, rows);
  if (done.ok()) cached_tokens = record.cached_tokens + done->cached_tokens;
  const Status ran = done.status();
  const auto noted = batches_.update(record.id, [&](BatchRecord& now) {
    if (now.state != BatchState::kInProgress) return Status();
    const JournalCounts& counts = journal.committed();
    now.completed = counts.finished - counts.failed;
    now.failed = counts.failed;
    now.prompt_tokens = counts.prompt_tokens;
    now.generated_tokens = counts.generated_tokens;
    now.cached_tokens = cached_tokens;
    if (ran.ok()) now.enter(BatchState::kFinalizing, unix_now());
    return Status();
  });
  return ran.ok() ? noted.status() : ran;
}

// The journal from which results are written, perhaps an empty one.
Result<Journal> BatchWorker::open_results(const BatchRecord& record, BatchState end) const {
  const std::string path = journal_path(record.id);
  if (!exists(path)) {
    if (end == BatchState::kCompleted) {
      return Status(Code::kCorruption, path + " is missing; the batch may be cancelled");
    }
    return Journal::create(path, head_of(record, ""));
  }
  Result<Journal> opened = Journal::open(path);
  if (opened.status().code() != Code::kCorruption || end == BatchState::kCompleted) return opened;
  log_error(record.id + " ends without what was done: " + std::string(opened.status().message()) +
            "; that file is kept as " + path + kSetAside);
  SPILLWAY_RETURN_IF_ERROR(set_aside(path));
  return Journal::create(path, head_of(record, ""));
}

// Makes files of what there is, and ends the batch.
Status BatchWorker::finish(const BatchRecord& record, BatchState end) {
  const std::string path = journal_path(record.id);
  const std::string input_path = files_.path_of(record.input_file);
  BatchResults results;
  JournalCounts counts;
  // Of a batch that was not looked through nothing is known that could be written.
  if (record.total > 0 || exists(path)) {
    SPILLWAY_ASSIGN_OR_RETURN(const Journal journal, open_results(record, end));
    std::optional<BatchInput> input;
    if (end == BatchState::kCompleted || exists(input_path)) {
      SPILLWAY_ASSIGN_OR_RETURN(input, BatchInput::open(input_path));
    }
    SPILLWAY_ASSIGN_OR_RETURN(
        results, write_batch_results(journal, input ? &*input : nullptr, record, end, context_,
                                     unix_now(), files_));
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
    now.detail.clear();
    now.enter(end, unix_now());
    return Status();
  });
  if (!ended.ok()) {  // The files are nobody's.
    for (const std::string& id : {results.output_file, results.error_file}) {
      if (!id.empty()) (void)files_.remove(record.owner, id);
    }
    return ended.status();
  }
  if (const Status removed = Journal::remove(path); !removed.ok()) {
    log_warning(record.id + ": " + std::string(removed.message()));  // The next start tries again.
  }
  return {};
}

}  // namespace spillway
