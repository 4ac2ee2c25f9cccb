// When rows run again that the machine, not they themselves, made fail (a disk, a checksum,
// memory): after a pause that doubles from fault to fault, and the more often a row was in one, the
// fewer run beside it, since one of them may be what breaks every sweep it is in. One thread.
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
    // Faults in a row, without a success between them, after which another try is of no use; also
    // the tries of one row.
    int64_t faults_max = 8;
  };

  BatchRetry(const Limits& limits, int64_t window) : limits_(limits), window_(window) {}

  // A row failed by a fault of the machine. What else runs ends in its own time; nothing starts
  // before the pause is over.
  void fault();
  // A row has its result: the machine works.
  void success() { faults_ = failing_ ? 1 : 0; }
  // Nothing runs any more: the pause begins.
  void begin_pause(Clock::time_point now);

  // There was a fault and its pause is not over.
  bool holds(Clock::time_point now);
  bool pausing() const { return pausing_; }
  double pause_seconds() const { return pause_seconds_; }  // Of the pause that is on

  int64_t faults() const { return faults_; }
  bool useless() const { return faults_ > limits_.faults_max; }

  // Sequences that may run beside a row that was in so many faults, itself included.
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
