// Signals for a long run at the command line: Ctrl-C asks it to stop, a crash leaves a mark.
//
// Signal handlers reach nothing but static memory, so each class lives at most once at a time;
// main thread only. Both put back what was there before.
#pragma once

#include <string>

namespace spillway {

// While it lives SIGINT and SIGTERM are requests to stop; the second one ends the process at once
// with status 130. SIGPIPE is ignored.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const;
};

// While it lives a crash of the program itself (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL; not kill
// -9, not power) creates the empty file `path` before the process dies as it would have.
class CrashMark {
 public:
  explicit CrashMark(const std::string& path);
  ~CrashMark();
  CrashMark(const CrashMark&) = delete;
  CrashMark& operator=(const CrashMark&) = delete;
};

}  // namespace spillway
