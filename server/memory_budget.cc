#include "server/memory_budget.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "kernels/base/units.h"

namespace spillway {

namespace {

// Kept free when no budget is given: the process itself, and the rest of the machine.
constexpr uint64_t kReserveBytes = uint64_t{1} << 30;

// The process besides what the plan counts: code, threads, tokenizer, sockets, scratch.
constexpr uint64_t kProcessBytes = uint64_t{256} << 20;

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

Result<uint64_t> kv_budget(const KvBudgetRequest& request) {
  const uint64_t fixed = request.weight_bytes + request.buffer_bytes + kProcessBytes;
  const uint64_t left = request.budget.bytes - std::min(request.budget.bytes, fixed);
  if (left < request.longest_sequence_bytes) {
    const uint64_t needed = fixed + request.longest_sequence_bytes;
    return Status(Code::kInfeasible,
                  "host memory is " + format_bytes(needed - request.budget.bytes) +
                      " short: weights " + format_bytes(request.weight_bytes) + ", activations " +
                      format_bytes(request.buffer_bytes) + ", process " +
                      format_bytes(kProcessBytes) + " and one sequence's KV cache " +
                      format_bytes(request.longest_sequence_bytes) + " do not fit " +
                      (request.budget.from_flag ? "--host-memory " : "what is free, ") +
                      format_bytes(request.budget.bytes) +
                      "; the smallest budget that fits is --host-memory " +
                      std::to_string((needed >> 20) + 1) + "MiB, or choose a smaller --format");
  }
  const uint64_t most =
      request.longest_sequence_bytes * static_cast<uint64_t>(request.block_sequences);
  return std::min(left, most);
}

}  // namespace spillway
