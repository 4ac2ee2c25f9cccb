// The kernel's statistics of this process. Any thread.
#pragma once

#include <cstdint>
#include <optional>

namespace spillway {

uint64_t peak_resident_bytes();

struct ProcessStats {
  double start_seconds = 0;  // Since 1970
  double cpu_seconds = 0;    // All threads, user and system
  uint64_t resident_bytes = 0;
  uint64_t virtual_bytes = 0;
  int64_t open_files = 0;
  int64_t open_files_max = 0;
};

// Takes some ten microseconds, and more with thousands of open files. Empty where /proc lacks the
// figures.
std::optional<ProcessStats> process_stats();

}  // namespace spillway
