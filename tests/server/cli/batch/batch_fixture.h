// What the batch tests share: a scheduler that makes up tokens, a directory of files, and a run.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/cli/batch/batch.h"
#include "tests/support/tiny_shape.h"

namespace spillway::batch_test {

// Token t of a sequence is a function of prompt, seed and t alone, as the engine promises. One
// sweep a step over a block of `block` sequences; the others wait. What a prompt begins with may
// break things: kPoison aborts the process, kUnfit has numbers of which no token can be drawn.
class MadeUpScheduler final : public Scheduler {
 public:
  static constexpr int32_t kPoison = 66;
  static constexpr int32_t kUnfit = 67;

  explicit MadeUpScheduler(int64_t queue_max = 16, std::chrono::microseconds sweep = {},
                           size_t block = SIZE_MAX)
      : queue_max_(queue_max), sweep_(sweep), block_(block) {
    shape_ = test::make_shape({.vocabulary = 1000, .positions = 512});
    thread_ = std::thread([this] { work(); });
  }

  ~MadeUpScheduler() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  const ModelShape& shape() const override { return shape_; }
  int64_t queue_max() const override { return queue_max_; }

  Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) override {
    const std::lock_guard lock(mutex_);
    if (!healthy) return Status(Code::kDeviceLost, "broken");
    if (refusals > 0 && refusals-- > 0) return Status(Code::kCapacity, "no memory for it now");
    if (live_ >= queue_max_) return Status(Code::kCapacity, "the queue is full");
    ++submitted;
    most_in_flight = std::max(most_in_flight.load(), ++live_);
    const RequestId id{++last_id_};
    waiting_.push_back({id, std::move(request), std::move(sink)});
    changed_.notify_all();
    return id;
  }

  void cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(id);
    changed_.notify_all();
  }

  void drain(double) override {}

  SchedulerStats stats() const override {
    SchedulerStats stats;
    stats.generated_tokens = generated_;
    stats.healthy = healthy;
    return stats;
  }

  static int32_t token_of(const Request& request, int32_t index) {
    uint64_t hash = request.sampling.seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(index);
    for (const int32_t token : request.prompt) hash = (hash ^ static_cast<uint64_t>(token)) * 31;
    return static_cast<int32_t>((hash ^ (hash >> 32)) % 1000);
  }

  std::atomic<bool> healthy{true};
  std::atomic<bool> unfit_fails{true};
  std::atomic<int64_t> submitted{0};
  std::atomic<int64_t> refusals{0};  // So many of the next submissions have no room
  std::atomic<int64_t> most_in_flight{0};
  std::atomic<int64_t> interrupt_after_tokens{-1};  // By SIGINT, once
  std::atomic<int64_t> break_after_tokens{-1};  // Then every sequence fails and nothing runs again
  // What a sweep over the block ends with; an error fails all of it. To be set before anything
  // runs.
  std::function<Status(const std::vector<const Request*>&)> sweep_status;

 private:
  struct Sequence {
    RequestId id;
    Request request;
    std::shared_ptr<TokenSink> sink;
    int32_t made = 0;
  };

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || !waiting_.empty() || !block_now_.empty(); });
      if (ends_ && waiting_.empty() && block_now_.empty()) return;
      std::deque<Sequence> sent_away;
      for (size_t i = 0; i < waiting_.size();) {
        const bool away = ends_ || cancelled_.count(waiting_[i].id) != 0;
        if (away) sent_away.push_back(std::move(waiting_[i]));
        if (away) waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
        if (!away) ++i;
      }
      const size_t before = block_now_.size();
      while (!waiting_.empty() && block_now_.size() < block_) {
        block_now_.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
      }
      lock.unlock();
      for (Sequence& sequence : sent_away) {
        end(sequence, FinishReason::kCancelled, {Code::kCancelled, "sent away"});
      }
      for (size_t i = before; i < block_now_.size(); ++i) block_now_[i].sink->on_admitted();
      sweep();
      lock.lock();
    }
  }

  void sweep() {
    std::this_thread::sleep_for(sweep_);
    std::vector<const Request*> requests;
    for (const Sequence& sequence : block_now_) requests.push_back(&sequence.request);
    const Status status = sweep_status && !requests.empty() ? sweep_status(requests) : Status();
    std::deque<Sequence> left;
    for (Sequence& sequence : block_now_) {
      if (!status.ok()) {
        end(sequence, FinishReason::kError, status);
      } else if (!step(sequence)) {
        left.push_back(std::move(sequence));
      }
    }
    block_now_ = std::move(left);
  }

  bool is_cancelled(RequestId id) {
    const std::lock_guard lock(mutex_);
    return cancelled_.count(id) != 0;
  }

  void end(Sequence& sequence, FinishReason reason, Status status) {
    Finish finish;
    finish.reason = reason;
    finish.status = std::move(status);
    end(sequence, std::move(finish));
  }

  void end(Sequence& sequence, Finish finish) {
    finish.usage.prompt_tokens = static_cast<int64_t>(sequence.request.prompt.size());
    finish.usage.generated_tokens = sequence.made;
    {
      const std::lock_guard lock(mutex_);
      --live_;
    }
    sequence.sink->on_finish(finish);
  }

  // True when the sequence has ended.
  bool step(Sequence& sequence) {
    if (sequence.request.prompt[0] == kPoison) std::abort();
    Finish finish;
    if (break_after_tokens >= 0 && static_cast<int64_t>(generated_) >= break_after_tokens) {
      healthy = false;
      finish.reason = FinishReason::kError;
      finish.status = Status(Code::kDeviceLost, "broken");
    } else if (sequence.request.prompt[0] == kUnfit && unfit_fails) {
      finish.reason = FinishReason::kError;
      finish.status = Status(Code::kCorruption, "the logit of token 5 is NaN");
      finish.own_fault = true;
    } else if (is_cancelled(sequence.id) || ends_) {
      finish.reason = FinishReason::kCancelled;
      finish.status = Status(Code::kCancelled, "cancelled");
    } else if (sequence.made < sequence.request.max_tokens) {
      sequence.sink->on_token(token_of(sequence.request, sequence.made++), nullptr);
      if (static_cast<int64_t>(++generated_) == interrupt_after_tokens) interrupt();
      return false;
    } else {
      finish.reason = FinishReason::kLength;
    }
    end(sequence, std::move(finish));
    return true;
  }

  // Sends SIGINT and makes no more tokens until somebody is cancelled for it: a busy machine may
  // take its time to notice. At most a second, since there may be nobody to cancel.
  void interrupt() {
    ::kill(::getpid(), SIGINT);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(1), [&] { return !cancelled_.empty() || ends_; });
  }

  ModelShape shape_;
  const int64_t queue_max_;
  const std::chrono::microseconds sweep_;
  const size_t block_;
  std::atomic<uint64_t> generated_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sequence> waiting_;
  std::deque<Sequence> block_now_;  // The engine thread's, but for its size while it sleeps
  std::set<RequestId> cancelled_;
  int64_t live_ = 0;
  uint64_t last_id_ = 0;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

// A directory with the files of one run, removed at the end.
class Place {
 public:
  Place() {
    std::string pattern = (std::filesystem::temp_directory_path() / "batch-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    flags.input = directory_ + "/in.jsonl";
    flags.output = directory_ + "/out.jsonl";
    flags.progress = "none";
    setup.seed = 7;
    setup.settings = {{"seed", "7"}};
    setup.retry.seconds = 0.001;
  }
  ~Place() { std::filesystem::remove_all(directory_); }

  void write_input(const std::string& text) const {
    std::ofstream(flags.input, std::ios::binary) << text;
  }

  std::string read_output() const {
    std::ifstream in(flags.output, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // The output's lines, parsed; "created", which is the clock's, removed.
  std::vector<nlohmann::json> rows() const {
    std::vector<nlohmann::json> rows;
    std::ifstream in(flags.output, std::ios::binary);
    for (std::string line; std::getline(in, line);) {
      rows.push_back(nlohmann::json::parse(line));
      rows.back()["response"]["body"].erase("created");
    }
    return rows;
  }

  // Runs the batch on `scheduler`, or on one of its own.
  Status run(MadeUpScheduler* scheduler = nullptr) {
    std::unique_ptr<MadeUpScheduler> own;
    if (scheduler == nullptr) {
      own = std::make_unique<MadeUpScheduler>();
      scheduler = own.get();
    }
    setup.open = [&](const OpenFor& purpose) -> Result<ServedModel> {
      if (purpose.accepts_source) SPILLWAY_RETURN_IF_ERROR(purpose.accepts_source(source));
      ++packs;
      loads += purpose.tokenizer_only ? 0 : 1;
      if (!purpose.tokenizer_only && on_load) on_load();
      ServedModel model;
      model.context.shape = &scheduler->shape();
      model.context.model_names = {"tiny"};
      model.scheduler = scheduler;
      model.identity = identity();
      return model;
    };
    const Result<BatchOutcome> outcome = run_batch(flags, setup);
    failed = outcome.ok() ? outcome->failed : -1;
    return outcome.status();
  }

  // Runs it as if nothing had ever happened, and removes what it leaves.
  std::vector<nlohmann::json> whole() {
    REQUIRE(run().ok());
    const auto all = rows();
    std::filesystem::remove(flags.output);
    return all;
  }

  std::string journal() const { return flags.output + ".journal"; }
  std::string identity() const { return source + " " + formats; }

  BatchFlags flags;
  BatchSetup setup;
  std::string source = "tiny 1", formats = "f32/f32";  // Of the model
  std::function<void()> on_load;                       // Called when the weights are asked for
  int loads = 0;                                       // How often they were
  int packs = 0;                                       // How often the model may have been packed
  int64_t failed = 0;  // Lines, by the last run; -1: it had an error

 private:
  std::string directory_;
};

// `count` lines with distinct prompts, from 100 + `first`, nothing else about them.
inline std::string plain_input(int count, int first = 0) {
  std::string text;
  for (int i = first; i < first + count; ++i) {
    text += "{\"prompt\":[" + std::to_string(100 + i) +
            "],\"max_tokens\":" + std::to_string(1 + i % 7) + ",\"return_token_ids\":true}\n";
  }
  return text;
}

// `count` bodies with distinct prompts; some with two samples, some OpenAI lines, some bad.
inline std::string mixed_input(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::string body = "{\"prompt\":[" + std::to_string(100 + i) +
                             ",5],\"max_tokens\":" + std::to_string(1 + i % 7) +
                             ",\"return_token_ids\":true" + (i % 5 == 1 ? ",\"n\":2" : "") + "}";
    if (i % 11 == 10) {
      text += "{\"prompt\": oops}\n";
    } else if (i % 2 == 0) {
      text += "{\"custom_id\":\"id-" + std::to_string(i) +
              "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":" + body + "}\n";
    } else {
      text += body + "\n";
    }
  }
  return text;
}

}  // namespace spillway::batch_test
