// The schedule for rerunning rows that failed by a fault of the machine, not their own (a disk, a
// checksum, memory): after a pause that doubles from fault to fault, and with fewer rows beside a
// row the more faults it was in, since it may be the one that breaks every sweep it is in. One
// thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace spillway {

class BatchRetry {
 public:
  using Clock = std::chrono::steady_clock;

  struct Limits {
    double seconds = 0.5;  // The first pause
    double seconds_max = 30;
    // Consecutive faults, without a success between them, after which another try is of no use;
    // also the limit on the tries of one row.
    int64_t faults_max = 8;
  };

  BatchRetry(const Limits& limits, int64_t window) : limits_(limits), window_(window) {}

  // Notes that a row failed by a fault of the machine. Running rows finish; no row starts before
  // the pause is over.
  void fault();
  // Notes that a row has its result: the machine works.
  void success() { faults_ = failing_ ? 1 : 0; }
  // Starts the pause, once no row is running.
  void begin_pause(Clock::time_point now);

  // Whether there was a fault and its pause is not over.
  bool holds(Clock::time_point now);
  bool pausing() const { return pausing_; }
  double pause_seconds() const { return pause_seconds_; }  // Length of the present pause

  int64_t faults() const { return faults_; }
  bool useless() const { return faults_ > limits_.faults_max; }

  // The number of sequences that may run together with a row that was in `faults` faults, including
  // it.
  int64_t at_once(int64_t faults) const;

 private:
  Limits limits_;
  int64_t window_;
  int64_t faults_ = 0;
  bool failing_ = false;
  bool pausing_ = false;
  double pause_seconds_ = 0;
  Clock::time_point over_;
};

}  // namespace spillway
