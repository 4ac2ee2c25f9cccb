#include "scheduler/planning/memory_budget.h"

#include <algorithm>
#include <fstream>

#include "kernels/base/cgroup.h"
#include "kernels/base/units.h"

namespace spillway {

namespace {

// Kept free when no budget is given, for the process itself and other programs.
constexpr uint64_t kReserveBytes = uint64_t{1} << 30;

// Bytes of kProcessBytes for requests; the remainder is for the program itself (25 MiB with a
// served model).
constexpr uint64_t kRequestsIncluded = uint64_t{160} << 20;
constexpr uint64_t kScratchIncluded = uint64_t{32} << 20;

constexpr uint64_t kBodiesBytesMin = uint64_t{48} << 20;
constexpr uint64_t kBodiesAtOnce = 4;  // At least; bodies of the largest size
constexpr uint64_t kAnswersBytesMin = uint64_t{48} << 20;
constexpr uint64_t kAnswersBytesMax = uint64_t{1} << 30;
constexpr uint64_t kAnswersPart = 16;  // 1 / this of the budget

uint64_t above(uint64_t bytes, uint64_t included) {
  return bytes - std::min(bytes, included);
}

// MemAvailable of /proc/meminfo, which counts page cache that can be dropped; 0 if unreadable.
uint64_t available_bytes(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string unit;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name == "MemAvailable:") return kib << 10;
  }
  return 0;
}

// Bytes of a cgroup's file pages, from its memory.stat.
uint64_t cached_bytes(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  uint64_t value = 0, sum = 0;
  while (file >> name >> value) {
    if (name == "inactive_file" || name == "active_file") sum += value;
  }
  return sum;
}

// Bytes that this process's cgroup and its ancestors may still take; the largest value without a
// limit.
uint64_t group_bytes_left(const std::string& root) {
  uint64_t left = ~uint64_t{0};
  const auto consider = [&](const std::string& folder, const char* limit, const char* used) {
    std::ifstream limit_file(folder + limit), used_file(folder + used);
    uint64_t limit_bytes = 0, used_bytes = 0;
    if (!(limit_file >> limit_bytes) || !(used_file >> used_bytes)) return;
    // The page cache counts as used but is reclaimable.
    const uint64_t held = used_bytes - std::min(used_bytes, cached_bytes(folder + "/memory.stat"));
    left = std::min(left, limit_bytes - std::min(limit_bytes, held));
  };
  const CgroupFolders folders = cgroup_folders("memory", root);
  for (const std::string& folder : folders.v1) {
    consider(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes");
  }
  for (const std::string& folder : folders.v2) consider(folder, "/memory.max", "/memory.current");
  return left;
}

MemoryBudget less_reserve(uint64_t available) {
  return {available - std::min(available, std::max(kReserveBytes, available / 20)), false};
}

}  // namespace

uint64_t RequestMemory::bodies_bytes_max() const {
  if (body_bytes_max == 0) return 0;
  return std::max(kBodiesBytesMin, kBodiesAtOnce * body_bytes_max);
}

RequestMemory within(uint64_t budget_bytes, RequestMemory requests) {
  if (requests.answers_bytes_max == 0) {
    requests.answers_bytes_max =
        std::clamp(budget_bytes / kAnswersPart, kAnswersBytesMin, kAnswersBytesMax);
  }
  return requests;
}

uint64_t process_bytes(uint64_t request_bytes, uint64_t scratch_bytes) {
  return kProcessBytes + above(request_bytes, kRequestsIncluded) +
         above(scratch_bytes, kScratchIncluded);
}

uint64_t available_host_bytes(const std::string& root) {
  return std::min(available_bytes(root), group_bytes_left(root));
}

MemoryBudget host_budget(std::optional<uint64_t> flag) {
  if (flag.has_value()) return {*flag, true};
  return less_reserve(available_host_bytes());
}

MemoryBudget host_budget(const HardwareProfile& hardware, std::optional<uint64_t> flag) {
  if (flag.has_value()) return {*flag, true};
  const HardwareProfile::Host& host = hardware.host;
  const double bytes =
      host.memory_free_bytes.value > 0 ? host.memory_free_bytes.value : host.memory_bytes.value;
  return less_reserve(static_cast<uint64_t>(bytes));
}

MemoryBudget device_budget(const MemoryInfo& memory, std::optional<uint64_t> flag) {
  if (flag.has_value()) return {*flag, true};
  // By now the context is allocated and not free any more, and other programs may have taken memory
  // since.
  const uint64_t free = memory.free_bytes;
  return {free - std::min(free, free / 20), false};
}

uint64_t device_limit(const Device& device, const MemoryBudget& budget) {
  if (!budget.from_flag) return budget.bytes;
  const MemoryInfo memory = device.memory();
  const uint64_t context = memory.total_bytes - memory.free_bytes - memory.taken_bytes;
  return budget.bytes - std::min({context, kDeviceProcessBytes, budget.bytes});
}

}  // namespace spillway
