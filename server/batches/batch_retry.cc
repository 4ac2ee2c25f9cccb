#include "server/batches/batch_retry.h"

#include <algorithm>
#include <cmath>

namespace spillway {

void BatchRetry::fault() {
  if (failing_) return;  // One fault fails a whole block.
  failing_ = true;
  ++faults_;
}

void BatchRetry::begin_pause(Clock::time_point now) {
  pausing_ = true;
  const auto doublings = static_cast<double>(std::max<int64_t>(0, faults_ - 1));
  pause_seconds_ = std::min(limits_.seconds_max, limits_.seconds * std::exp2(doublings));
  over_ = now + std::chrono::duration_cast<Clock::duration>(
                    std::chrono::duration<double>(pause_seconds_));
}

bool BatchRetry::holds(Clock::time_point now) {
  if (pausing_ && now >= over_) pausing_ = failing_ = false;
  return failing_;
}

int64_t BatchRetry::at_once(int64_t faults) const {
  return std::max<int64_t>(1, window_ >> std::min<int64_t>(62, 2 * faults));
}

}  // namespace spillway
