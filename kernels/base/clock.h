// Seconds of a monotonic clock.
#pragma once

#include <chrono>

namespace spillway {

inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace spillway
