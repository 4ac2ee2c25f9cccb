#include "server/process_stats.h"

#include <sys/resource.h>

#include <fstream>
#include <string>

namespace spillway {

uint64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) << 10;
}

IoCounts io_counts() {
  std::ifstream file("/proc/self/io");
  IoCounts counts;
  std::string name;
  uint64_t value = 0;
  while (file >> name >> value) {
    if (name == "read_bytes:") counts.read_bytes = value;
    if (name == "write_bytes:") counts.written_bytes = value;
  }
  return counts;
}

}  // namespace spillway
