// What the batch tests share: a scheduler that makes up tokens, a directory of files, and a run.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/commands/batch.h"

namespace spillway::batch_test {

// Token t of a sequence is a function of prompt, seed and t alone, as the engine promises. One
// sweep a step over a block of `block` sequences; kPoison as a prompt token aborts the process.
class MadeUpScheduler final : public Scheduler {
 public:
  static constexpr int32_t kPoison = 66;

  explicit MadeUpScheduler(int64_t queue_max = 16, std::chrono::microseconds sweep = {})
      : queue_max_(queue_max), sweep_(sweep) {
    shape_.vocabulary = 1000;
    shape_.positions = 512;
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
    if (static_cast<int64_t>(sequences_.size()) >= queue_max_) {
      return Status(Code::kCapacity, "the queue is full");
    }
    most_in_flight = std::max(most_in_flight.load(), static_cast<int64_t>(sequences_.size()) + 1);
    const RequestId id{++last_id_};
    sequences_.push_back({id, std::move(request), std::move(sink)});
    changed_.notify_all();
    return id;
  }

  void cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(id);
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
  std::atomic<int64_t> most_in_flight{0};
  std::atomic<int64_t> interrupt_after_tokens{-1};  // By SIGINT, once
  std::atomic<int64_t> break_after_tokens{-1};  // Then every sequence fails and nothing runs again

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
      changed_.wait(lock, [&] { return ends_ || !sequences_.empty(); });
      if (ends_ && sequences_.empty()) return;
      std::deque<Sequence> block = std::move(sequences_);
      sequences_.clear();
      lock.unlock();
      std::this_thread::sleep_for(sweep_);
      std::deque<Sequence> left;
      for (Sequence& sequence : block) {
        if (!step(sequence)) left.push_back(std::move(sequence));
      }
      lock.lock();
      for (Sequence& sequence : sequences_) left.push_back(std::move(sequence));
      sequences_ = std::move(left);
    }
  }

  bool is_cancelled(RequestId id) {
    const std::lock_guard lock(mutex_);
    return cancelled_.count(id) != 0;
  }

  // True when the sequence has ended.
  bool step(Sequence& sequence) {
    if (sequence.request.prompt[0] == kPoison) std::abort();
    Finish finish;
    finish.usage.prompt_tokens = static_cast<int64_t>(sequence.request.prompt.size());
    if (break_after_tokens >= 0 && static_cast<int64_t>(generated_) >= break_after_tokens) {
      healthy = false;
      finish.reason = FinishReason::kError;
      finish.status = Status(Code::kDeviceLost, "broken");
    } else if (is_cancelled(sequence.id) || ends_) {
      finish.reason = FinishReason::kCancelled;
      finish.status = Status(Code::kCancelled, "cancelled");
    } else if (sequence.made < sequence.request.max_tokens) {
      sequence.sink->on_token(token_of(sequence.request, sequence.made++), nullptr);
      if (static_cast<int64_t>(++generated_) == interrupt_after_tokens) ::kill(::getpid(), SIGINT);
      return false;
    } else {
      finish.reason = FinishReason::kLength;
    }
    finish.usage.generated_tokens = sequence.made;
    sequence.sink->on_finish(finish);
    return true;
  }

  ModelShape shape_;
  const int64_t queue_max_;
  const std::chrono::microseconds sweep_;
  std::atomic<uint64_t> generated_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sequence> sequences_;
  std::set<RequestId> cancelled_;
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
    setup.open = [&](const OpenFor&) -> Result<ServedModel> {
      ServedModel model;
      model.context.shape = &scheduler->shape();
      model.context.model_names = {"tiny"};
      model.scheduler = scheduler;
      model.identity = identity;
      return model;
    };
    return run_batch(flags, setup);
  }

  std::string journal() const { return flags.output + ".journal"; }

  BatchFlags flags;
  BatchSetup setup;
  std::string identity = "tiny-1";

 private:
  std::string directory_;
};

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
