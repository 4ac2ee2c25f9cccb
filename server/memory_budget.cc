#include "server/memory_budget.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "kernels/base/units.h"

namespace spillway {

namespace {

// Kept free when no budget is given: the process itself, and the rest of the machine.
constexpr uint64_t kReserveBytes = uint64_t{1} << 30;

// MemAvailable of /proc/meminfo, which counts page cache that can be dropped; 0 if unreadable.
uint64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string unit;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name == "MemAvailable:") return kib << 10;
  }
  return 0;
}

}  // namespace

MemoryBudget host_budget(std::optional<uint64_t> flag) {
  if (flag.has_value()) return {*flag, true};
  const uint64_t available = available_bytes();
  return {available - std::min(available, std::max(kReserveBytes, available / 20)), false};
}

}  // namespace spillway
