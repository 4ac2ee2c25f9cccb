#include "server/commands/batch_run.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "server/api/completion_run.h"

namespace spillway {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kStartRowsMax = 64;   // Rows that one commit starts
constexpr int64_t kCommitRowsMax = 64;  // Finished rows that wait for a commit
constexpr auto kCommitInterval = std::chrono::seconds(1);
constexpr auto kPoll = std::chrono::milliseconds(100);

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Answer {
  int64_t row = 0;
  CompletionResult result;
};

// From the engine thread to ours. Holds at most what is in flight.
class Mailbox {
 public:
  void put(Answer answer) {
    const std::lock_guard lock(mutex_);
    answers_.push_back(std::move(answer));
    arrived_.notify_one();
  }

  // What is there; waits for the first up to `timeout`.
  std::deque<Answer> take(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, timeout, [&] { return !answers_.empty(); });
    return std::exchange(answers_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Answer> answers_;
};

ApiError crashed_row() {
  ApiError error;
  error.status = 500;
  error.type = "server_error";
  error.code = "row_crashed";
  error.message = "The program crashed twice with this request running; it was not tried again.";
  return error;
}

ApiError too_many_sequences(int64_t sequences, int64_t most) {
  ApiError error =
      invalid_value("n", "times the number of prompts gives " + std::to_string(sequences) +
                             " sequences; at most " + std::to_string(most) + " fit at once");
  return error;
}

class Runner {
 public:
  explicit Runner(const BatchJob& job)
      : job_(job),
        window_(std::max<int64_t>(1, job.scheduler->queue_max())),
        refill_(std::clamp<int64_t>(window_ / 4, 1, kStartRowsMax)),
        mailbox_(std::make_shared<Mailbox>()) {
    progress_.lines_total = job.rows;
    progress_.lines_before = job.journal->counts().finished;
    generated_before_ = job.journal->counts().generated_tokens;
    generated_at_start_ = job.scheduler->stats().generated_tokens;
  }

  Result<BatchProgress> run() {
    Status status = loop();
    if (!status.ok()) stop_all();
    const Status committed = job_.journal->commit();
    if (status.ok()) status = committed;
    refresh();
    if (!status.ok()) return status;
    return progress_;
  }

  const BatchProgress& progress() const { return progress_; }

 private:
  // A call on its way, kept for its answer and for cancel().
  struct Flight {
    BatchLine line;
    std::shared_ptr<CompletionRun> run;
    int64_t sequences = 0;
  };

  // A row that is parsed and not yet started.
  struct Ready {
    BatchLine line;
    CompletionCall call;
    int64_t sequences() const { return static_cast<int64_t>(call.requests.size()); }
  };

  Status loop() {
    for (;;) {
      if (job_.interrupted()) return wind_down();
      SPILLWAY_RETURN_IF_ERROR(fill());
      if (at_end_ && !next_ && flights_.empty()) break;
      SPILLWAY_RETURN_IF_ERROR(collect(may_start() ? std::chrono::milliseconds(0) : kPoll));
      SPILLWAY_RETURN_IF_ERROR(commit_if_due());
      refresh();
      if (job_.show) job_.show(progress_);
    }
    return {};
  }

  // There are rows to start, and room for so many that a commit is worth it.
  bool may_start() const {
    if ((at_end_ && !next_) || alone_) return false;
    if (in_flight_ == 0) return true;
    const int64_t wanted = std::max(refill_, next_ ? next_->sequences() : 1);
    return !suspect_waits_ && in_flight_ + wanted <= window_;
  }

  // Starts a group of rows if there is room for one: one commit notes them all as running.
  Status fill() {
    if (!may_start()) return {};
    std::vector<Ready> group;
    int64_t sequences = in_flight_;
    for (int64_t read = 0; read < kStartRowsMax; ++read) {
      if (!next_) SPILLWAY_RETURN_IF_ERROR(read_next());
      if (!next_) {
        if (at_end_) break;
        continue;  // That line had its result.
      }
      const bool suspect = job_.journal->crashes(next_->line.number) > 0;
      const bool others = sequences > 0;
      suspect_waits_ = suspect && others;
      if (suspect_waits_ || (others && sequences + next_->sequences() > window_)) break;
      sequences += next_->sequences();
      group.push_back(std::move(*next_));
      next_.reset();
      alone_ = suspect;
      if (alone_) break;
    }
    return start(std::move(group));
  }

  // Reads one line. Leaves it in next_ if it has to run; otherwise it has its result now.
  Status read_next() {
    InputLine text;
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, job_.input->next(&text));
    if (!found) {
      at_end_ = true;
      return {};
    }
    BatchLine line = read_batch_line(text, *job_.context);
    ids_.check(&line);
    if (job_.journal->finished(line.number)) return {};
    if (!line.error && job_.journal->crashes(line.number) >= kCrashesMax) {
      line.error = crashed_row();
    }
    if (line.error) return fail(line, *line.error);
    auto parsed = parse_batch_line(line, *job_.context, job_.seed);
    if (const auto* error = std::get_if<ApiError>(&parsed)) return fail(line, *error);
    Ready ready{std::move(line), std::get<CompletionCall>(std::move(parsed))};
    if (job_.ignored != nullptr) job_.ignored->add(ready.call);
    if (ready.sequences() > window_) {
      return fail(ready.line, too_many_sequences(ready.sequences(), window_));
    }
    next_ = std::move(ready);
    return {};
  }

  Status start(std::vector<Ready> group) {
    if (group.empty()) return {};
    std::vector<int64_t> rows;
    for (const Ready& ready : group) rows.push_back(ready.line.number);
    SPILLWAY_RETURN_IF_ERROR(job_.journal->start(rows));
    note_commit();
    for (Ready& ready : group) SPILLWAY_RETURN_IF_ERROR(submit(std::move(ready)));
    return {};
  }

  Status submit(Ready ready) {
    const int64_t row = ready.line.number;
    const int64_t sequences = ready.sequences();
    CompletionEvents events;
    events.on_done = [mailbox = mailbox_, row](CompletionResult result) {
      mailbox->put({row, std::move(result)});
    };
    auto started = CompletionRun::start(*job_.scheduler, job_.context->tokenizer,
                                        std::move(ready.call), std::move(events));
    if (const auto* error = std::get_if<ApiError>(&started)) return refused(ready.line, *error);
    flights_[row] = {std::move(ready.line),
                     std::get<std::shared_ptr<CompletionRun>>(std::move(started)), sequences};
    in_flight_ += sequences;
    return {};
  }

  // Who asks for no more than the window is refused for the row's own fault only.
  Status refused(const BatchLine& line, const ApiError& error) {
    if (error.status == 503 || !job_.scheduler->stats().healthy) return engine_lost();
    alone_ = false;
    return fail(line, error);
  }

  // Journals the answers that have arrived.
  Status collect(std::chrono::milliseconds timeout) {
    if (flights_.empty()) return {};
    Status first_error;
    for (Answer& answer : mailbox_->take(timeout)) {
      const auto found = flights_.find(answer.row);
      SPILLWAY_CHECK(found != flights_.end());
      Flight flight = std::move(found->second);
      flights_.erase(found);
      in_flight_ -= flight.sequences;
      if (flights_.empty()) alone_ = false;
      const Status status = record(flight, answer.result);
      if (first_error.ok()) first_error = status;
    }
    return first_error;
  }

  Status record(const Flight& flight, const CompletionResult& result) {
    if (!result.error) {
      const CompletionHead head = batch_head(job_.run_id, flight.line, std::time(nullptr));
      const std::string line =
          answer_line(job_.run_id, flight.line,
                      completion_body(head, flight.run->call(), *job_.context, result));
      return finish({flight.line.number, false, result.usage.prompt_tokens,
                     result.usage.generated_tokens, line});
    }
    if (result.cancelled && stopping_) return {};  // Ours; it runs again after --resume.
    if (result.cancelled || !job_.scheduler->stats().healthy) return engine_lost();
    return fail(flight.line, *result.error);
  }

  Status fail(const BatchLine& line, const ApiError& error) {
    return finish({line.number, true, 0, 0, error_line(job_.run_id, line, error)});
  }

  Status finish(const JournalRow& row) {
    SPILLWAY_RETURN_IF_ERROR(job_.journal->finish(row));
    ++uncommitted_;
    return {};
  }

  Status commit_if_due() {
    if (uncommitted_ == 0) return {};
    if (uncommitted_ < kCommitRowsMax && Clock::now() - committed_ < kCommitInterval) return {};
    SPILLWAY_RETURN_IF_ERROR(job_.journal->commit());
    note_commit();
    return {};
  }

  void note_commit() {
    uncommitted_ = 0;
    committed_ = Clock::now();
  }

  // After an interrupt: nothing new starts, and what runs has a little time to finish.
  Status wind_down() {
    const Clock::time_point asked = Clock::now();
    while (!flights_.empty() && seconds_since(asked) < job_.grace_seconds) {
      SPILLWAY_RETURN_IF_ERROR(collect(kPoll));
      refresh();
      if (job_.show) job_.show(progress_);
    }
    stop_all();
    return {Code::kCancelled, "interrupted"};
  }

  // Cancels what runs and waits until nothing calls back any more.
  void stop_all() {
    stopping_ = true;
    for (auto& [row, flight] : flights_) flight.run->cancel();
    while (!flights_.empty()) {
      if (const Status status = collect(kPoll); !status.ok() && !job_.scheduler->stats().healthy) {
        return;  // A dead engine does not answer.
      }
    }
  }

  Status engine_lost() const { return {Code::kDeviceLost, "the engine failed and cannot go on"}; }

  void refresh() {
    const JournalCounts& counts = job_.journal->counts();
    progress_.lines_done = counts.finished;
    progress_.lines_failed = counts.failed;
    progress_.prompt_tokens = counts.prompt_tokens;
    progress_.generated_tokens_now =
        static_cast<int64_t>(job_.scheduler->stats().generated_tokens - generated_at_start_);
    progress_.generated_tokens = generated_before_ + progress_.generated_tokens_now;
    progress_.seconds = seconds_since(started_);
  }

  const BatchJob& job_;
  const int64_t window_;  // Sequences in flight at most: enough to fill the block and its queue
  const int64_t refill_;  // Room that is worth a commit
  std::shared_ptr<Mailbox> mailbox_;
  CustomIds ids_;

  bool at_end_ = false;
  std::optional<Ready> next_;
  bool alone_ = false;  // A row that ran in a crash runs alone, so that a second crash is its
  bool suspect_waits_ = false;  // next_ is such a row and waits for the others to end
  bool stopping_ = false;
  std::map<int64_t, Flight> flights_;  // By row
  int64_t in_flight_ = 0;              // Sequences

  int64_t uncommitted_ = 0;
  Clock::time_point started_ = Clock::now();
  Clock::time_point committed_ = Clock::now();
  BatchProgress progress_;
  int64_t generated_before_ = 0;
  uint64_t generated_at_start_ = 0;
};

}  // namespace

Result<BatchProgress> run_rows(const BatchJob& job) {
  return Runner(job).run();
}

void CustomIds::check(BatchLine* line) {
  if (!line->custom_id) return;
  const XXH128_hash_t hash = XXH3_128bits(line->custom_id->data(), line->custom_id->size());
  const auto* bytes = reinterpret_cast<const char*>(&hash);
  if (seen_.emplace(bytes, sizeof(hash)).second || line->error) return;
  line->error = invalid_value("custom_id", "is that of an earlier line, too");
  line->error->code = "duplicate_custom_id";
  line->body.clear();
}

}  // namespace spillway
