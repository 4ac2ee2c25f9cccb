// Accounts for the sweep that runs: the work it had to do, the bytes it moved and the time it
// waited. `bench` compares these figures with the machine's bounds.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/trace.h"
#include "policy/sweep_work.h"
#include "scheduler/engine/sweep.h"

namespace spillway {

// A sweep that ran, and what it took.
struct LoggedSweep : SweepWork {
  double seconds = 0;
  double ended = 0;  // steady_seconds()
  // The parts of `seconds` in which the engine waited for data.
  double weights_wait_seconds = 0, kv_wait_seconds = 0, activations_wait_seconds = 0;
  double staging_wait_seconds = 0;  // A free staging buffer

  double waiting_seconds() const {
    return weights_wait_seconds + kv_wait_seconds + activations_wait_seconds + staging_wait_seconds;
  }
};

// The sweeps that an engine ran, for measurements. Any thread.
class SweepLog {
 public:
  void add(const LoggedSweep& sweep) {
    const std::lock_guard lock(mutex_);
    sweeps_.push_back(sweep);
  }
  std::vector<LoggedSweep> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(sweeps_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<LoggedSweep> sweeps_;
};

// Running totals of an engine's life: bytes over the links, and seconds in which a transfer waited
// for a free staging buffer. `disk_read` leaves out weights.
struct TransferTotals {
  uint64_t disk_read = 0, disk_written = 0;
  uint64_t to_device = 0, to_host = 0;  // Weights included
  uint64_t attended_by_host = 0;        // KV read by CPU attention
  double kv_room_seconds = 0, activations_room_seconds = 0;
};

// Owned by the engine. Thread rule: the engine thread.
class SweepAccount {
 public:
  // Both may be null: no log, no trace.
  SweepAccount(std::shared_ptr<SweepLog> log, Trace* trace) : log_(std::move(log)), trace_(trace) {
    if (trace_ != nullptr) wait_track_ = trace_->track("wait");
  }

  // Call before the first sweep: bytes moved until now belong to no sweep.
  void start_from(const TransferTotals& totals) { before_ = totals; }

  // Begins a sweep of these items; returns its number of tokens.
  int64_t begin(std::span<const SweepItem> items);

  // Ends the sweep. Bytes read since the last sweep's end count for this one. `weights_read`: bytes
  // of weights from disk; `kv_wait_seconds`: all waits for the KV cache, those for staging space
  // included.
  void finish(double seconds, const TransferTotals& now, uint64_t weights_read,
              double kv_wait_seconds);

  // The current sweep, or the last one.
  const LoggedSweep& sweep() const { return work_; }

  // Calls acquire(), adds its time to that member of LoggedSweep, and shows it in the trace.
  template <class Acquire>
  auto wait(const char* what, double LoggedSweep::*seconds, const Acquire& acquire) {
    const double start = steady_seconds();
    auto result = acquire();
    const double end = steady_seconds();
    work_.*seconds += end - start;
    if (trace_ != nullptr && end - start > kWaitShownSeconds) {
      trace_->span(wait_track_, what, start, end);
    }
    return result;
  }

 private:
  std::shared_ptr<SweepLog> log_;
  Trace* trace_;
  Trace::Track wait_track_{};
  TransferTotals before_;  // At the end of the last sweep
  LoggedSweep work_;       // The current sweep
};

}  // namespace spillway
