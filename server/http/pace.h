// How fast something that is short (places in the queue, memory) becomes free again, for
// Retry-After: units over time, in which recent ones count more. Any thread.
#pragma once

#include <mutex>

namespace spillway {

class Pace {
 public:
  // `now`: steady_seconds(). From here on time counts: nothing was in use before, and idle time
  // says nothing.
  void start(double now);

  // So many units became free.
  void freed(double units, double now);

  // The expected seconds until so many units become free, by the pace so far. While none has ever
  // become free it is the time since start(): whoever has waited so long may wait as long again.
  double seconds_for(double units, double now) const;

 private:
  mutable std::mutex mutex_;
  double last_ = 0;                 // The last event's time; 0: there was none
  double burst_ = 0;                // When the present burst began
  double seconds_ = 0, units_ = 0;  // Of the past, the older the less
};

// Seconds for the header: at least 1, as whole seconds go, and at most 59, since some clients
// ignore a minute and more.
int retry_after(double seconds);

}  // namespace spillway
