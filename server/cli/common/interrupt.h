// Signals for a long run at the command line: Ctrl-C asks it to stop, a crash leaves a mark.
//
// Signal handlers can access only static memory, so at most one object of each class exists at a
// time; main thread only. Both restore the previous handlers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// While it lives SIGINT, SIGTERM and SIGHUP (unless it was ignored, as under nohup) are requests to
// stop; the second one writes `last_words` to stderr and ends the process at once with status 130.
// SIGPIPE is ignored.
class InterruptGuard {
 public:
  // kEnds: the first signal ends the process, for work that cannot be stopped half way and has
  // nothing to save.
  enum class First : uint8_t { kAsks, kEnds };

  explicit InterruptGuard(std::string_view last_words = {}, First first = First::kAsks);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const;
};

// While it lives a crash of the program itself (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL; not kill
// -9, not power) writes the rows running then to the file `path` before the process dies as it
// would have.
class CrashMark {
 public:
  // REQUIRES: rows that run at once have different slots.
  CrashMark(const std::string& path, size_t slots);
  ~CrashMark();
  CrashMark(const CrashMark&) = delete;
  CrashMark& operator=(const CrashMark&) = delete;

  // The table of running rows; callers that outlive the mark may still write to it.
  class Slots {
   public:
    // Sets the row that runs in `slot`, 0: none. Any thread, never blocks.
    void set(size_t slot, int64_t row) const {
      if (rows_ != nullptr) rows_[slot].store(row, std::memory_order_relaxed);
    }

   private:
    friend class CrashMark;
    std::shared_ptr<std::atomic<int64_t>[]> rows_;
  };
  Slots slots() const { return slots_; }

  // The rows of a mark; none if there is no such file.
  static std::vector<int64_t> read(const std::string& path);

 private:
  Slots slots_;
};

}  // namespace spillway
