#include "server/log_limit.h"

#include <utility>

namespace spillway {

bool LogLimit::admits(std::string_view line, double now, LeftOut* told) {
  if (any_ && line == last_ && now - last_time_ < kLogRepeatSeconds) {
    ++repeats_;
    return false;
  }
  if (now - second_ >= 1) {
    second_ = now;
    written_ = 0;
  }
  if (written_ >= kLogErrorsPerSecond) {
    ++others_;
    return false;
  }
  ++written_;
  *told = {std::exchange(repeats_, 0), std::exchange(others_, 0)};
  last_ = line;
  last_time_ = now;
  any_ = true;
  return true;
}

LogLimit::LeftOut LogLimit::tell(double now) {
  LeftOut told;
  if (now - last_time_ >= kLogRepeatSeconds) told.repeats = std::exchange(repeats_, 0);
  if (now - second_ >= 1) told.others = std::exchange(others_, 0);
  return told;
}

}  // namespace spillway
