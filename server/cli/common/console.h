// Output of commands for display: lines of tables, notes on stderr, and the progress of a long
// read. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace spillway {

// printf's text and a newline; text longer than 1.5 KB is cut.
[[gnu::format(printf, 1, 2)]] std::string text_line(const char* text, ...);

// A line on stderr, written at once.
void say(const std::string& line);

// "Converting: 3.2 GiB of 13.3 GiB, 1.1 GiB/s, 9.1 s left" on stderr: one moving line on a
// terminal, nothing elsewhere.
class ByteProgress {
 public:
  explicit ByteProgress(std::string what);
  ~ByteProgress();  // Clears the line.
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;

  // Redraws the line at most ten times a second. `total_bytes` 0: that is not known.
  void show(uint64_t done_bytes, uint64_t total_bytes);

 private:
  using Clock = std::chrono::steady_clock;

  const std::string what_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = {};
  bool drawn_ = false;
};

}  // namespace spillway
