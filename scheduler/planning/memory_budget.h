// The memory of host and device that a run may take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "policy/hardware_profile.h"

namespace spillway {

// Host memory outside of any plan: code, threads, tokenizer, sockets, and the least requests and
// scratch that any run has. process_bytes() adds the excess.
constexpr uint64_t kProcessBytes = uint64_t{256} << 20;

// Host memory for requests, outside of the engine.
struct RequestMemory {
  uint64_t body_bytes_max = uint64_t{8} << 20;  // One body; 0: no bodies
  uint64_t answers_bytes_max = 0;               // All prompts and answers; 0: set by the budget

  // Bytes of all bodies held at once, from the first byte until they are parsed.
  uint64_t bodies_bytes_max() const;
  // Bytes for parsing, two bodies at a time: each takes up to four times its size.
  uint64_t parsing_bytes() const { return 8 * body_bytes_max; }
  uint64_t total() const { return bodies_bytes_max() + parsing_bytes() + answers_bytes_max; }
};

// `requests` with answers_bytes_max, if it is 0, as a budget of `budget_bytes` allows.
RequestMemory within(uint64_t budget_bytes, RequestMemory requests);

// Host memory of the process other than weights, cache and the engine's buffers. `scratch_bytes`:
// the CPU threads' scratch (kernels/cpu_scratch.h).
uint64_t process_bytes(uint64_t request_bytes, uint64_t scratch_bytes);

// Memory of a discrete device outside of any plan: context, kernels, cuBLAS and its workspace, the
// ops' scratch. An estimate: the scratch is counted (MemoryInfo), the rest is `bench`'s
// other_device_bytes on a device that no other program uses.
constexpr uint64_t kDeviceProcessBytes = uint64_t{768} << 20;

// Bytes that this process may still take: the available memory of the machine and of its cgroup.
// `root` is prefixed to every path, for tests.
uint64_t available_host_bytes(const std::string& root = "");

struct MemoryBudget {
  uint64_t bytes = 0;
  bool from_flag = false;  // Else: the free memory less a reserve for other programs
};

// `flag`: --host-memory. Without it the budget is the available memory that the kernel reports.
MemoryBudget host_budget(std::optional<uint64_t> flag);

// The host budget on the machine of a profile.
MemoryBudget host_budget(const HardwareProfile& hardware, std::optional<uint64_t> flag);

// `flag`: --device-memory. Without it the budget is the device's free memory less a reserve.
MemoryBudget device_budget(const MemoryInfo& memory, std::optional<uint64_t> flag);

// The part of `budget` that the process may allocate itself: of --device-memory all but its
// context, whose size the device reports (other programs' memory looks the same, so at most
// kDeviceProcessBytes are subtracted); of free memory all, since the context is not in it.
uint64_t device_limit(const Device& device, const MemoryBudget& budget);

}  // namespace spillway
