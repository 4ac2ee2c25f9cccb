// The mark that a crash of the program leaves: which rows ran.
//
// Signal handlers can access only static memory, so at most one object exists at a time; main
// thread only. It restores the previous handlers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace spillway {

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
      if (rows_ != nullptr) rows_[slot + 1].store(row, std::memory_order_relaxed);
    }

    // Names the run whose rows the slots hold, by a number of the caller's.
    void set_run(int64_t run) const {
      if (rows_ != nullptr) rows_[0].store(run, std::memory_order_relaxed);
    }

   private:
    friend class CrashMark;
    std::shared_ptr<std::atomic<int64_t>[]> rows_;  // Behind the number of the run
  };
  Slots slots() const { return slots_; }

  struct Crash {
    int64_t run = 0;
    std::vector<int64_t> rows;
  };
  // What a mark says; no rows if there is no such file.
  static Crash read(const std::string& path);

 private:
  Slots slots_;
};

}  // namespace spillway
