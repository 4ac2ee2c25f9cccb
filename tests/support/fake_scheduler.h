// A scheduler without an engine: deterministic tokens from a thread of its own, one per sequence
// and round, with faults on request. For the server's tests.
//
// Thread rule: as Scheduler; the controls from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/support/patience.h"

namespace spillway {

// What a FakeScheduler's sequence generates when nothing else was asked for: token `t` after
// `prompt`, a printable ASCII byte + 1 (the ids of tests/server/tokenizer/tokenizer_support.h).
int32_t fake_token(const Request& request, int64_t t);

class FakeScheduler : public Scheduler {
 public:
  struct Options {
    int64_t queue_max = 64;
    KvRule kv_rule = {};
    double round_seconds = 0;  // Pause between rounds
    int64_t prompt_chunk = 0;  // Prompt tokens of a round; 0: all
    // Token `t` of a sequence; fake_token if empty.
    std::function<int32_t(const Request&, int64_t)> token;
    int64_t cached_tokens = 0;       // Of every prompt, as if the prefix cache had them
    int64_t fail_after_tokens = -1;  // The sequence ends with kError after this many
  };

  FakeScheduler() : FakeScheduler(Options()) {}
  explicit FakeScheduler(Options options);
  ~FakeScheduler() override;

  const ModelShape& shape() const override { return shape_; }
  int64_t queue_max() const override { return options_.queue_max; }
  Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) override;
  void cancel(RequestId id) override;
  void drain(double seconds) override;
  SchedulerStats stats() const override;

  // No token is made until release().
  void hold();
  void release();
  // The next submissions, after `accepted` more, are refused with this.
  void refuse_after(int64_t accepted, Status refusal);
  void set_healthy(bool healthy);
  // What stats() tells of sweeps.
  void set_sweeps(double stalled_seconds, int64_t failures_in_a_row, double failed_seconds_ago = 0);

  void set_last_sweep(const SweepStats& sweep);

  int64_t submitted() const;
  int64_t finished(FinishReason reason) const;
  std::vector<Request> seen() const;  // Every accepted request
  // Waits until nothing runs or waits; false after `seconds`.
  bool wait_idle(double seconds = test::kPatience) const;
  // Waits until `count` requests were accepted.
  bool wait_submitted(int64_t count, double seconds = test::kPatience) const;

 private:
  struct Sequence {
    RequestId id{};
    Request request;
    std::shared_ptr<TokenSink> sink;
    int64_t generated = 0;
    int64_t processed = 0;  // Of the prompt
    bool admitted = false;
  };

  void run();
  std::optional<Finish> step(Sequence& sequence);  // A finish when it ends
  bool is_cancelled(RequestId id);
  void count(const Finish& finish);  // In the statistics, before the sink hears of it
  void record(RequestId id, const Finish& finish);

  const Options options_;
  ModelShape shape_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Sequence> mailbox_;
  std::set<RequestId> cancelled_;
  std::map<FinishReason, int64_t> finished_;
  std::vector<Request> seen_;
  std::set<RequestId> alive_;
  int64_t submitted_ = 0;
  SchedulerStats stats_;  // Of ended sequences
  int64_t accept_left_ = INT64_MAX;
  Status refusal_;
  bool held_ = false;
  bool draining_ = false;
  bool stopping_ = false;
  bool healthy_ = true;
  std::thread engine_;
};

}  // namespace spillway
