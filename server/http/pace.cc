#include "server/http/pace.h"

#include <algorithm>
#include <cmath>

namespace spillway {
namespace {

constexpr double kKept = 0.9;          // Of the past's weight with each burst: about ten count
constexpr double kBurstSeconds = 0.1;  // What becomes free within this is one burst

}  // namespace

void Pace::start(double now) {
  const std::lock_guard lock(mutex_);
  last_ = now;
}

void Pace::freed(double units, double now) {
  const std::lock_guard lock(mutex_);
  // Sequences end by the sweep, many at once: the mean of some bursts counts, not the last gap.
  if (now - burst_ >= kBurstSeconds) {
    seconds_ *= kKept;
    units_ *= kKept;
    burst_ = now;
  }
  seconds_ += now - last_;
  units_ += units;
  last_ = now;
}

double Pace::seconds_for(double units, double now) const {
  const std::lock_guard lock(mutex_);
  const double waited = last_ > 0 ? now - last_ : 0;
  if (units_ <= 0) return waited;
  return units * (seconds_ + waited) / units_;
}

int retry_after(double seconds) {
  return static_cast<int>(std::clamp(std::ceil(seconds), 1.0, 59.0));
}

}  // namespace spillway
