// Signals for a long run at the command line: Ctrl-C asks it to stop.
//
// Signal handlers can access only static memory, so at most one object exists at a time; main
// thread only. It restores the previous handlers.
#pragma once

#include <cstdint>
#include <string_view>

namespace spillway {

// While it lives SIGINT, SIGTERM and SIGHUP (unless it was ignored, as under nohup) are requests to
// stop; the second one writes `last_words` to stderr and ends the process at once with status 130.
// SIGPIPE is ignored.
class InterruptGuard {
 public:
  // kEnds: the first signal ends the process, for work that cannot be stopped half way and has
  // nothing to save.
  enum class First : uint8_t { kAsks, kEnds };

  // `leftover`: a file, such as a socket, that the signal which ends the process removes; a path of
  // more than 4 KB is left alone.
  explicit InterruptGuard(std::string_view last_words = {}, First first = First::kAsks,
                          std::string_view leftover = {});
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const;
};

}  // namespace spillway
