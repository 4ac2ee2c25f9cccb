// The progress that a batch shows on stderr. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace spillway {

struct BatchProgress {
  int64_t lines_total = 0;
  int64_t lines_done = 0;    // Including earlier runs
  int64_t lines_failed = 0;  // Included in lines_done
  int64_t lines_before = 0;  // Done by earlier runs
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;         // Found in the prefix cache, of lines that this run has done
  int64_t generated_tokens = 0;      // Including earlier runs and running sequences
  int64_t generated_tokens_now = 0;  // By this run
  double seconds = 0;                // This run's

  double tokens_per_second() const;  // Generated, by this run
  double seconds_left() const;       // Negative: too early for an estimate
};

// kTerminal: one line that is rewritten, at most 5 times a second. kPlain: a line every 5 seconds.
// kJson: an object a line, every second. The first comes after one interval.
enum class ProgressKind : uint8_t { kNone, kTerminal, kPlain, kJson };

// "auto" is kTerminal on a terminal, else kPlain. REQUIRES: one of auto, plain, json, none.
ProgressKind progress_kind(const std::string& name, int fd);

std::string progress_text(const BatchProgress& progress);
std::string progress_json(const BatchProgress& progress, const char* state);

class ProgressDisplay {
 public:
  ProgressDisplay(ProgressKind kind, std::FILE* to) : kind_(kind), to_(to) {}

  // Shows the state if the interval is over.
  void update(const BatchProgress& progress);

  // Shows the last state in any case and ends a rewritten line. `state`: "done", "interrupted".
  void finish(const BatchProgress& progress, const char* state);

 private:
  ProgressKind kind_;
  std::FILE* to_;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

}  // namespace spillway
