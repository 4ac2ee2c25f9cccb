#include "server/batches/batch_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "server/api/answer_json.h"
#include "server/api/answer_memory.h"
#include "server/api/completion_run.h"
#include "server/log.h"

namespace spillway {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kStartRowsMax = 64;   // Lines read between two checks of the mailbox
constexpr int64_t kCommitRowsMax = 64;  // Finished rows waiting for a commit
constexpr auto kCommitInterval = std::chrono::seconds(1);
constexpr auto kPoll = std::chrono::milliseconds(100);

struct Answer {
  int64_t row = 0;
  CompletionResult result;
};

// Passes answers from the engine thread to ours. Holds at most the rows in flight.
class Mailbox {
 public:
  void put(Answer answer) {
    const std::lock_guard lock(mutex_);
    answers_.push_back(std::move(answer));
    arrived_.notify_one();
  }

  // Returns all answers present; waits up to `timeout` for the first.
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

ApiError too_many_sequences(int64_t sequences, int64_t most) {
  ApiError error =
      invalid_value("n", "times the number of prompts gives " + std::to_string(sequences) +
                             " sequences; at most " + std::to_string(most) + " fit at once");
  return error;
}

// A row that is parsed and waits to be started.
struct Ready {
  BatchRow row;
  CompletionCall call;
  int64_t faults = 0;  // Faults of the machine that it was in
  int64_t sequences() const { return static_cast<int64_t>(call.requests.size()); }
  // Memory that it may take from its start until its result is in the journal.
  uint64_t bytes() const { return answer_bytes(call) + row.line.body.size(); }
};

// A running call, kept for its answer and for cancel().
struct Flight {
  BatchRow row;
  std::shared_ptr<CompletionRun> run;
  int64_t faults = 0;
  int64_t sequences = 0;
  uint64_t bytes = 0;
  size_t slot = 0;
  std::shared_ptr<std::atomic<bool>> in_block;
};

// Sequences in flight at most: enough to fill the block and its queue.
int64_t window_of(const BatchJob& job) {
  const int64_t queue = std::max<int64_t>(1, job.scheduler->queue_max());
  return job.sequences_max > 0 ? std::min(queue, job.sequences_max) : queue;
}

class Runner {
 public:
  Runner(const BatchJob& job, BatchRows& rows)
      : job_(job),
        rows_(rows),
        window_(window_of(job)),
        refill_(std::clamp<int64_t>(window_ / 4, 1, kStartRowsMax)),
        mailbox_(std::make_shared<Mailbox>()),
        retry_(job.retry, window_) {
    for (int64_t slot = window_; slot > 0; --slot) slots_.push_back(static_cast<size_t>(slot - 1));
    progress_.lines_total = job.rows;
    progress_.lines_before = rows.counts().finished;
    generated_before_ = rows.counts().generated_tokens;
    generated_at_start_ = job.scheduler->stats().generated_tokens;
  }

  Result<BatchProgress> run() {
    Status status = loop();
    if (!status.ok()) stop_all();
    const Status committed = rows_.commit();
    if (status.ok()) status = committed;
    refresh();
    if (!status.ok()) return status;
    return progress_;
  }

 private:
  Status loop() {
    while (!done()) {
      if (job_.interrupted()) return wind_down();
      SPILLWAY_RETURN_IF_ERROR(retry_or_give_up());
      SPILLWAY_RETURN_IF_ERROR(fill());
      const bool starts = !waits_ && may_start();
      SPILLWAY_RETURN_IF_ERROR(collect(starts ? std::chrono::milliseconds(0) : kPoll));
      SPILLWAY_RETURN_IF_ERROR(commit_if_due());
      refresh();
      if (job_.show) job_.show(progress_);
    }
    return rows_.left_over();
  }

  bool done() const { return at_end_ && !next_ && again_.empty() && flights_.empty(); }

  // Whether there may be rows to start, and enough capacity to make a round of starts worth it.
  bool may_start() {
    if (at_end_ && !next_ && again_.empty()) return false;
    if (retry_.holds(Clock::now())) return false;
    if (in_flight_ == 0) return true;
    if (next_ && !has_memory(*next_)) return false;
    const int64_t wanted = std::max(refill_, next_ ? next_->sequences() : 1);
    return in_flight_ + wanted <= room_;
  }

  bool has_memory(const Ready& ready) const {
    return ready.bytes() <= job_.answers_bytes_max - bytes_in_flight_;
  }

  // Starts rows while there is capacity.
  Status fill() {
    waits_ = false;
    if (!may_start()) return {};
    for (int64_t read = 0; read < kStartRowsMax; ++read) {
      if (!next_) SPILLWAY_RETURN_IF_ERROR(find_next());
      if (!next_) {
        if (at_end_ || waits_) break;
        continue;  // That row has its result.
      }
      if (in_flight_ == 0) room_ = window_;
      room_ = std::min(room_, retry_.at_once(next_->faults));
      if (in_flight_ > 0 && in_flight_ + next_->sequences() > room_) break;
      if (!has_memory(*next_)) break;
      Ready ready = std::move(*next_);
      next_.reset();
      SPILLWAY_RETURN_IF_ERROR(submit(std::move(ready)));
    }
    return {};
  }

  // Finds the next row to run: rows failed by the machine, then new ones.
  Status find_next() {
    if (again_.empty()) return at_end_ ? Status() : read_next();
    next_ = std::move(again_.front());
    again_.pop_front();
    return {};
  }

  // Takes a new row. Leaves it in next_ if it has to run; otherwise it has its result.
  Status read_next() {
    BatchRow row;
    const auto in_flight = static_cast<int64_t>(flights_.size());
    const int64_t room = std::max<int64_t>(1, (in_flight_ == 0 ? window_ : room_) - in_flight_);
    SPILLWAY_ASSIGN_OR_RETURN(const BatchRows::Next found, rows_.next(in_flight, room, &row));
    at_end_ = found == BatchRows::Next::kEnd;
    waits_ = found == BatchRows::Next::kLater;
    if (found != BatchRows::Next::kRow) return {};
    if (row.line.error) return fail(row, *row.line.error);
    auto parsed = parse_batch_line(row.line, *job_.context, row.seed);
    if (const auto* error = std::get_if<ApiError>(&parsed)) return fail(row, *error);
    Ready ready{std::move(row), std::get<CompletionCall>(std::move(parsed))};
    for (Request& request : ready.call.requests) assign(request);
    if (job_.ignored != nullptr) job_.ignored->add(ready.call);
    if (ready.sequences() > window_) {
      return fail(ready.row, too_many_sequences(ready.sequences(), window_));
    }
    if (ready.bytes() > job_.answers_bytes_max) {
      return fail(ready.row, answer_too_large(ready.bytes(), job_.answers_bytes_max));
    }
    next_ = std::move(ready);
    return {};
  }

  // What the job says of every request.
  void assign(Request& request) const {
    const int64_t priority = int64_t{request.priority} + job_.priority;
    request.priority = static_cast<int32_t>(std::clamp<int64_t>(priority, INT32_MIN, INT32_MAX));
    request.client = job_.client;
    request.batch = true;
    request.cache_salt.key = job_.salt_key;
  }

  Status submit(Ready ready) {
    const int64_t row = ready.row.key;
    Flight flight;
    flight.faults = ready.faults;
    flight.sequences = ready.sequences();
    flight.bytes = ready.bytes();
    flight.slot = slots_.back();
    flight.in_block = std::make_shared<std::atomic<bool>>(false);
    CompletionEvents events;
    // A dead engine is not waited for (stop_all), and may call when the run has ended.
    events.on_admitted = [marks = job_.marks, in_block = flight.in_block, slot = flight.slot, row] {
      in_block->store(true);
      marks.set(slot, row);
    };
    events.on_done = [marks = job_.marks, mailbox = mailbox_, slot = flight.slot,
                      row](CompletionResult result) {
      marks.set(slot, 0);
      mailbox->put({row, std::move(result)});
    };
    auto started = CompletionRun::start(*job_.scheduler, job_.context->tokenizer,
                                        std::move(ready.call), std::move(events));
    flight.row = std::move(ready.row);
    if (const auto* error = std::get_if<ApiError>(&started)) {
      job_.marks.set(flight.slot, 0);
      return refused(std::move(flight), *error);
    }
    slots_.pop_back();
    in_flight_ += flight.sequences;
    bytes_in_flight_ += flight.bytes;
    flight.run = std::get<std::shared_ptr<CompletionRun>>(std::move(started));
    flights_[row] = std::move(flight);
    return {};
  }

  Status refused(Flight flight, const ApiError& error) {
    const std::string why = with_cause(error).message;
    if (error.status == 503 || !job_.scheduler->stats().healthy) return {Code::kDeviceLost, why};
    if (error.status != 429 && error.status < 500) return fail(flight.row, error);
    return machine_failed(std::move(flight), {Code::kCapacity, why});
  }

  // Hands on the answers that have arrived.
  Status collect(std::chrono::milliseconds timeout) {
    Status first_error = rows_.tick();
    for (Answer& answer : mailbox_->take(timeout)) {
      const auto found = flights_.find(answer.row);
      SPILLWAY_CHECK(found != flights_.end());
      Flight flight = std::move(found->second);
      flights_.erase(found);
      in_flight_ -= flight.sequences;
      bytes_in_flight_ -= flight.bytes;
      slots_.push_back(flight.slot);
      const Status status = record(std::move(flight), answer.result);
      if (first_error.ok()) first_error = status;
    }
    return first_error;
  }

  Status record(Flight flight, const CompletionResult& result) {
    const BatchRow& row = flight.row;
    if (!result.error) {
      const CompletionHead head = batch_head(row.run_id, row.line, std::time(nullptr));
      retry_.success();
      progress_.cached_tokens += result.usage.cached_tokens;
      return finish({row.key, false, result.usage.prompt_tokens, result.usage.generated_tokens,
                     answer_line(row.run_id, row.line,
                                 answer_body(head, flight.run->call(), *job_.context, result))});
    }
    if (result.own_fault) {
      retry_.success();
      return fail(row, with_cause(*result.error));
    }
    // The first cause counts: when one sequence of a row fails, its others are cancelled, too.
    const bool cancelled = result.engine.ok() || result.engine.code() == Code::kCancelled;
    if (cancelled && stopping_) return {};  // Our own; the row runs again after --resume.
    if (cancelled || !job_.scheduler->stats().healthy) return engine_lost(result);
    return machine_failed(std::move(flight), result.engine);
  }

  // Queues the row to run again, with others that fail now, unless its tries are used up.
  Status machine_failed(Flight flight, const Status& cause) {
    retry_.fault();
    if (cause_.message() != cause.message()) log_error("The engine failed: " + text_of(cause));
    cause_ = cause;
    if (++flight.faults > job_.retry.faults_max) return rows_.set_aside(flight.row.key, cause);
    if (stopping_) return {};
    auto parsed = parse_batch_line(flight.row.line, *job_.context, flight.row.seed);
    auto* call = std::get_if<CompletionCall>(&parsed);
    SPILLWAY_CHECK(call != nullptr);  // It parsed before
    for (Request& request : call->requests) assign(request);
    again_.push_back({std::move(flight.row), std::move(*call), flight.faults});
    return {};
  }

  // With no row running, starts the next try when it is due, or gives up.
  Status retry_or_give_up() {
    if (!flights_.empty() || !retry_.holds(Clock::now())) return {};
    if (retry_.useless()) return cause_.at("the engine fails again and again");
    if (retry_.pausing()) return {};
    retry_.begin_pause(Clock::now());
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.3g", retry_.pause_seconds());
    log_warning(std::to_string(again_.size()) + " lines that it took down run again in " + seconds +
                " s (try " + std::to_string(retry_.faults()) + " of " +
                std::to_string(job_.retry.faults_max) + ").");
    return {};
  }

  Status fail(const BatchRow& row, const ApiError& error) {
    SPILLWAY_RETURN_IF_ERROR(
        finish({row.key, true, 0, 0, error_line(row.run_id, row.line, error)}));
    const int64_t failed = rows_.counts().failed;
    if (!job_.errors_max || failed <= *job_.errors_max) return {};
    return {Code::kCapacity, std::to_string(failed) + " lines have failed, and --max-errors is " +
                                 std::to_string(*job_.errors_max) + " (line " +
                                 std::to_string(row.line.number) + ": " + error.message + ")"};
  }

  Status finish(const JournalRow& row) {
    SPILLWAY_RETURN_IF_ERROR(rows_.finish(row));
    ++uncommitted_;
    return {};
  }

  Status commit_if_due() {
    if (uncommitted_ == 0) return {};
    if (uncommitted_ < kCommitRowsMax && Clock::now() - committed_ < kCommitInterval) return {};
    return commit();
  }

  Status commit() {
    SPILLWAY_RETURN_IF_ERROR(rows_.commit());
    uncommitted_ = 0;
    committed_ = Clock::now();
    return {};
  }

  // After an interrupt: starts nothing new, cancels waiting rows, and gives rows in the block a
  // little time to finish.
  Status wind_down() {
    stopping_ = true;
    const double asked = steady_seconds();
    for (auto& [row, flight] : flights_) {
      if (!flight.in_block->load()) flight.run->cancel();
    }
    if (job_.grace_seconds > 0) say_how_long();
    while (!flights_.empty() && steady_seconds() - asked < job_.grace_seconds) {
      SPILLWAY_RETURN_IF_ERROR(collect(kPoll));
      refresh();
      if (job_.show) job_.show(progress_);
    }
    stop_all();
    return {Code::kCancelled, "interrupted"};
  }

  void say_how_long() const {
    if (flights_.empty()) return;
    const SchedulerStats stats = job_.scheduler->stats();
    std::string sweep = "one pass over the layers";
    if (stats.sweeps > 0) {
      const double seconds = stats.busy_seconds / static_cast<double>(stats.sweeps);
      sweep += " (" + format_seconds(seconds) + " on average)";
    }
    log_info("Interrupted: " + std::to_string(flights_.size()) +
             " lines are in flight; those in "
             "the block have " +
             format_seconds(job_.grace_seconds) + " to finish, then they end with " + sweep +
             ". A second interrupt ends the program at once; nothing finished is lost.");
  }

  // Cancels all rows and waits until no callback is outstanding.
  void stop_all() {
    stopping_ = true;
    for (auto& [row, flight] : flights_) flight.run->cancel();
    while (!flights_.empty()) {
      if (const Status status = collect(kPoll); !status.ok() && !job_.scheduler->stats().healthy) {
        return;  // A dead engine does not answer.
      }
    }
  }

  static Status engine_lost(const CompletionResult& result) {
    const std::string why = text_of(result.engine);
    return {Code::kDeviceLost,
            "the engine failed and cannot go on" + (why.empty() ? "" : ": " + why)};
  }

  static std::string text_of(const Status& status) { return std::string(status.message()); }

  void refresh() {
    const JournalCounts counts = rows_.counts();
    progress_.lines_done = counts.finished;
    progress_.lines_failed = counts.failed;
    progress_.prompt_tokens = counts.prompt_tokens;
    const SchedulerStats stats = job_.scheduler->stats();
    progress_.generated_tokens_now =
        static_cast<int64_t>(stats.generated_tokens - generated_at_start_);
    progress_.generated_tokens = generated_before_ + progress_.generated_tokens_now;
    progress_.seconds = steady_seconds() - started_;
  }

  const BatchJob& job_;
  BatchRows& rows_;
  const int64_t window_;  // Sequences in flight at most: enough to fill the block and its queue
  const int64_t refill_;  // Capacity that is worth a round of starts
  std::shared_ptr<Mailbox> mailbox_;

  bool at_end_ = false;
  bool waits_ = false;  // There was no row when one was asked for last.
  std::optional<Ready> next_;
  std::deque<Ready> again_;            // Failed by the machine
  std::map<int64_t, Flight> flights_;  // By key
  std::vector<size_t> slots_;          // Free slots of the crash mark
  int64_t in_flight_ = 0;              // Sequences
  uint64_t bytes_in_flight_ = 0;
  int64_t room_ = 0;  // Capacity in sequences, given the rows in flight
  bool stopping_ = false;

  BatchRetry retry_;
  Status cause_;  // The last fault of the machine

  int64_t uncommitted_ = 0;
  double started_ = steady_seconds();
  Clock::time_point committed_ = Clock::now();
  BatchProgress progress_;
  int64_t generated_before_ = 0;
  uint64_t generated_at_start_ = 0;
};

}  // namespace

Result<BatchProgress> run_rows(const BatchJob& job, BatchRows& rows) {
  return Runner(job, rows).run();
}

}  // namespace spillway
