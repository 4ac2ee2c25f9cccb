#include "server/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace spillway {

namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// When the process began: proc(5), field 22 of /proc/PID/stat, in ticks since the machine's boot.
// The second field, the program's name, may hold spaces and parentheses.
std::optional<double> read_start_seconds() {
  std::ifstream self("/proc/self/stat"), machine("/proc/stat");
  std::string line, word;
  if (!std::getline(self, line)) return std::nullopt;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  double ticks = 0, boot = 0;
  for (int field = 3; field < 22; ++field) fields >> word;
  if (!(fields >> ticks)) return std::nullopt;
  while (machine >> word && word != "btime") std::getline(machine, line);
  if (!(machine >> boot)) return std::nullopt;
  return boot + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// The number of open files, without the one that reads the directory.
std::optional<int64_t> count_open_files() {
  namespace fs = std::filesystem;
  std::error_code error;
  int64_t files = 0;
  for (fs::directory_iterator it("/proc/self/fd", error), end; !error && it != end;) {
    ++files;
    it.increment(error);
  }
  if (error || files == 0) return std::nullopt;
  return files - 1;
}

}  // namespace

uint64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) << 10;
}

std::optional<ProcessStats> process_stats() {
  std::ifstream memory("/proc/self/statm");
  uint64_t virtual_pages = 0, resident_pages = 0;
  if (!(memory >> virtual_pages >> resident_pages)) return std::nullopt;
  static const std::optional<double> start = read_start_seconds();
  const std::optional<int64_t> files = count_open_files();
  rusage usage{};
  rlimit limit{};
  if (!start || !files || getrusage(RUSAGE_SELF, &usage) != 0 ||
      getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return std::nullopt;
  }
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return ProcessStats{.start_seconds = *start,
                      .cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime),
                      .resident_bytes = resident_pages * page_bytes,
                      .virtual_bytes = virtual_pages * page_bytes,
                      .open_files = *files,
                      .open_files_max = static_cast<int64_t>(limit.rlim_cur)};
}

}  // namespace spillway
