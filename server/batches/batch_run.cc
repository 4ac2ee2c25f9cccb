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

ApiError crashed_row() {
  ApiError error;
  error.status = 500;
  error.type = "server_error";
  error.code = "row_crashed";
  error.message =
      "The program crashed with this request running, and again with nothing else running; it was "
      "not tried again.";
  return error;
}

ApiError too_many_sequences(int64_t sequences, int64_t most) {
  ApiError error =
      invalid_value("n", "times the number of prompts gives " + std::to_string(sequences) +
                             " sequences; at most " + std::to_string(most) + " fit at once");
  return error;
}

// A row that is parsed and waits to be started.
struct Ready {
  BatchLine line;
  CompletionCall call;
  int64_t faults = 0;  // Faults of the machine that it was in
  int64_t sequences() const { return static_cast<int64_t>(call.requests.size()); }
  // Memory that it may take from its start until its result is in the journal.
  uint64_t bytes() const { return answer_bytes(call) + line.body.size(); }
};

// A running call, kept for its answer and for cancel().
struct Flight {
  BatchLine line;
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
  explicit Runner(const BatchJob& job)
      : job_(job),
        window_(window_of(job)),
        refill_(std::clamp<int64_t>(window_ / 4, 1, kStartRowsMax)),
        mailbox_(std::make_shared<Mailbox>()),
        retry_(job.retry, window_) {
    for (int64_t slot = window_; slot > 0; --slot) slots_.push_back(static_cast<size_t>(slot - 1));
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

 private:
  Status loop() {
    while (!done()) {
      if (job_.interrupted()) return wind_down();
      SPILLWAY_RETURN_IF_ERROR(retry_or_give_up());
      SPILLWAY_RETURN_IF_ERROR(fill());
      SPILLWAY_RETURN_IF_ERROR(collect(may_start() ? std::chrono::milliseconds(0) : kPoll));
      SPILLWAY_RETURN_IF_ERROR(commit_if_due());
      refresh();
      if (job_.show) job_.show(progress_);
    }
    return set_aside_.empty() ? Status() : rows_left_over();
  }

  bool done() const {
    return at_end_ && !next_ && again_.empty() && parties_.empty() && flights_.empty();
  }

  // Whether there are rows to start, and enough capacity to make a round of starts worth it.
  bool may_start() {
    if (at_end_ && !next_ && again_.empty() && (parties_.empty() || !flights_.empty())) {
      return false;
    }
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
    if (!may_start()) return {};
    for (int64_t read = 0; read < kStartRowsMax; ++read) {
      if (!next_) SPILLWAY_RETURN_IF_ERROR(find_next());
      if (!next_) {
        if (at_end_) break;
        continue;  // That line had its result, or waits with its party.
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

  // Finds the next row to run: rows failed by the machine, then the input's, last the suspects.
  Status find_next() {
    if (again_.empty() && at_end_ && flights_.empty() && !parties_.empty()) {
      again_ = std::move(parties_.begin()->second);
      parties_.erase(parties_.begin());
      SPILLWAY_RETURN_IF_ERROR(commit());  // Commit before rows that may crash the program
      log_info("Running " + std::to_string(again_.size()) +
               " of the lines that ran in a crash, by themselves.");
    }
    if (again_.empty()) return at_end_ ? Status() : read_next();
    next_ = std::move(again_.front());
    again_.pop_front();
    return {};
  }

  Result<bool> next_of_file(BatchLine* line) {
    InputLine text;
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, job_.input->next(&text));
    if (!found) return false;
    *line = read_batch_line(text, *job_.context);
    ids_.check(line);
    return true;
  }

  // As next_of_file(), but skips lines with a result: every line is a read of its own.
  Result<bool> next_of_order(BatchLine* line) {
    const std::vector<BatchOrder::Line>& lines = job_.order->lines();
    while (started_lines_ < lines.size() && job_.journal->finished(lines[started_lines_].number)) {
      ++started_lines_;
    }
    if (started_lines_ == lines.size()) return false;
    const BatchOrder::Line& place = lines[started_lines_++];
    job_.input->go_to(place.offset, place.number);
    InputLine text;
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, job_.input->next(&text));
    SPILLWAY_CHECK(found && text.number == place.number);  // The bytes are those of the first pass.
    *line = read_batch_line(text, *job_.context);
    if (place.repeats_id) refuse_repeated_id(line);
    return true;
  }

  // Reads one line. Leaves it in next_ if it has to run now; otherwise it has its result or waits.
  Status read_next() {
    BatchLine line;
    SPILLWAY_ASSIGN_OR_RETURN(const bool found,
                              job_.order == nullptr ? next_of_file(&line) : next_of_order(&line));
    if (!found) {
      at_end_ = true;
      return {};
    }
    if (job_.journal->finished(line.number)) return {};
    const Suspect* suspect = job_.journal->suspect(line.number);
    if (!line.error && suspect != nullptr && suspect->convicted) line.error = crashed_row();
    if (line.error) return fail(line, *line.error);
    auto parsed = parse_batch_line(line, *job_.context, job_.seed);
    if (const auto* error = std::get_if<ApiError>(&parsed)) return fail(line, *error);
    Ready ready{std::move(line), std::get<CompletionCall>(std::move(parsed))};
    for (Request& request : ready.call.requests) assign(request);
    if (job_.ignored != nullptr) job_.ignored->add(ready.call);
    if (ready.sequences() > window_) {
      return fail(ready.line, too_many_sequences(ready.sequences(), window_));
    }
    if (ready.bytes() > job_.answers_bytes_max) {
      return fail(ready.line, answer_too_large(ready.bytes(), job_.answers_bytes_max));
    }
    if (suspect != nullptr) {
      parties_[suspect->party].push_back(std::move(ready));
    } else {
      next_ = std::move(ready);
    }
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
    const int64_t row = ready.line.number;
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
    flight.line = std::move(ready.line);
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
    if (error.status != 429 && error.status < 500) return fail(flight.line, error);
    return machine_failed(std::move(flight), {Code::kCapacity, why});
  }

  // Writes the answers that have arrived to the journal.
  Status collect(std::chrono::milliseconds timeout) {
    Status first_error;
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
    const BatchLine& line = flight.line;
    if (!result.error) {
      const CompletionHead head = batch_head(job_.run_id, line, std::time(nullptr));
      retry_.success();
      return finish({line.number, false, result.usage.prompt_tokens, result.usage.generated_tokens,
                     answer_line(job_.run_id, line,
                                 answer_body(head, flight.run->call(), *job_.context, result))});
    }
    if (result.own_fault) {
      retry_.success();
      return fail(line, with_cause(*result.error));
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
    if (++flight.faults > job_.retry.faults_max) {
      set_aside_.push_back(flight.line.number);
    } else if (!stopping_) {
      auto parsed = parse_batch_line(flight.line, *job_.context, job_.seed);
      auto* call = std::get_if<CompletionCall>(&parsed);
      SPILLWAY_CHECK(call != nullptr);  // It parsed before
      for (Request& request : call->requests) assign(request);
      again_.push_back({std::move(flight.line), std::move(*call), flight.faults});
    }
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

  Status rows_left_over() const {
    return cause_.at(std::to_string(set_aside_.size()) +
                     " lines failed in every try, by no fault of their own, line " +
                     std::to_string(*std::min_element(set_aside_.begin(), set_aside_.end())) +
                     " the first of them");
  }

  Status fail(const BatchLine& line, const ApiError& error) {
    SPILLWAY_RETURN_IF_ERROR(
        finish({line.number, true, 0, 0, error_line(job_.run_id, line, error)}));
    const int64_t failed = job_.journal->counts().failed;
    if (!job_.errors_max || failed <= *job_.errors_max) return {};
    return {Code::kCapacity, std::to_string(failed) + " lines have failed, and --max-errors is " +
                                 std::to_string(*job_.errors_max) + " (line " +
                                 std::to_string(line.number) + ": " + error.message + ")"};
  }

  Status finish(const JournalRow& row) {
    SPILLWAY_RETURN_IF_ERROR(job_.journal->finish(row));
    ++uncommitted_;
    return {};
  }

  Status commit_if_due() {
    if (uncommitted_ == 0) return {};
    if (uncommitted_ < kCommitRowsMax && Clock::now() - committed_ < kCommitInterval) return {};
    return commit();
  }

  Status commit() {
    SPILLWAY_RETURN_IF_ERROR(job_.journal->commit());
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
    const JournalCounts& counts = job_.journal->counts();
    progress_.lines_done = counts.finished;
    progress_.lines_failed = counts.failed;
    progress_.prompt_tokens = counts.prompt_tokens;
    const SchedulerStats stats = job_.scheduler->stats();
    progress_.cached_tokens = static_cast<int64_t>(stats.prefix_hits);
    progress_.generated_tokens_now =
        static_cast<int64_t>(stats.generated_tokens - generated_at_start_);
    progress_.generated_tokens = generated_before_ + progress_.generated_tokens_now;
    progress_.seconds = steady_seconds() - started_;
  }

  const BatchJob& job_;
  const int64_t window_;  // Sequences in flight at most: enough to fill the block and its queue
  const int64_t refill_;  // Capacity that is worth a round of starts
  std::shared_ptr<Mailbox> mailbox_;
  CustomIds ids_;             // Of lines in the input's order
  size_t started_lines_ = 0;  // Of job_.order

  bool at_end_ = false;
  std::optional<Ready> next_;
  std::deque<Ready> again_;  // Failed by the machine, or a party of suspects whose turn it is
  std::map<int64_t, std::deque<Ready>> parties_;  // Suspects of a crash, which wait for all others
  std::map<int64_t, Flight> flights_;             // By row
  std::vector<size_t> slots_;                     // Free slots of the crash mark
  int64_t in_flight_ = 0;                         // Sequences
  uint64_t bytes_in_flight_ = 0;
  int64_t room_ = 0;  // Capacity in sequences, given the rows in flight
  bool stopping_ = false;

  BatchRetry retry_;
  Status cause_;  // The last fault of the machine
  std::vector<int64_t> set_aside_;

  int64_t uncommitted_ = 0;
  double started_ = steady_seconds();
  Clock::time_point committed_ = Clock::now();
  BatchProgress progress_;
  int64_t generated_before_ = 0;
  uint64_t generated_at_start_ = 0;
};

}  // namespace

Result<BatchProgress> run_rows(const BatchJob& job) {
  return Runner(job).run();
}

}  // namespace spillway
