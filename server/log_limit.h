// Keeps a log readable when everything fails at once. Of warnings and errors at most ten lines a
// second are written, and one that says what the one before said is counted for some seconds:
// every sequence of a failed sweep reports the same. What was left out is told by a later line.
//
// One thread at a time. Time is any clock's, in seconds, and never goes back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

constexpr uint64_t kLogErrorsPerSecond = 10;
constexpr double kLogRepeatSeconds = 5;

class LogLimit {
 public:
  // What is to be told before the next line; 0: nothing.
  struct LeftOut {
    uint64_t repeats = 0;  // Of the last warning or error that was written
    uint64_t others = 0;   // Lines beyond ten a second
  };

  // Whether a warning or error is written. What `told` then says is not told again.
  bool admits(std::string_view line, double now, LeftOut* told);

  // Before a line of another kind, which is always written.
  LeftOut tell(double now);

 private:
  double second_ = 0;     // When the present second began
  uint64_t written_ = 0;  // In it
  uint64_t others_ = 0;   // Left out, not yet told
  std::string last_;      // Written last
  double last_time_ = 0;
  bool any_ = false;  // There is such a line
  uint64_t repeats_ = 0;
};

}  // namespace spillway
