// How much memory of host and device a run may take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "policy/hardware_profile.h"

namespace spillway {

// Taken by what no plan counts: code, threads, tokenizer, sockets, and as much of requests and
// scratch as any run has. What goes beyond, process_bytes() adds.
constexpr uint64_t kProcessBytes = uint64_t{256} << 20;

// Host memory for requests, besides what their sequences have in the engine.
struct RequestMemory {
  uint64_t body_bytes_max = uint64_t{8} << 20;  // One body; 0: there are none
  uint64_t answers_bytes_max = 0;  // All prompts and answers together; 0: by the budget

  // All bodies that are held at once, from the first byte until they are parsed.
  uint64_t bodies_bytes_max() const;
  // What the bodies cost that are being parsed, two at a time: each up to four times its size.
  uint64_t parsing_bytes() const { return 8 * body_bytes_max; }
  uint64_t total() const { return bodies_bytes_max() + parsing_bytes() + answers_bytes_max; }
};

// With answers_bytes_max, if it is open, as a budget of that many bytes allows.
RequestMemory within(uint64_t budget_bytes, RequestMemory requests);

// Host memory that the process takes besides weights, cache and the engine's buffers.
// `scratch_bytes`: of the CPU's threads (kernels/cpu_scratch.h).
uint64_t process_bytes(uint64_t request_bytes, uint64_t scratch_bytes);

// The same on a device with memory of its own: context, kernels, cuBLAS and its workspace, the ops'
// scratch. A guess: the scratch is counted (MemoryInfo), the rest is what `bench` shows as
// other_device_bytes on a device that nobody else uses.
constexpr uint64_t kDeviceProcessBytes = uint64_t{768} << 20;

// Bytes that this process may still take: what is available, also in its control group. `root` goes
// before every path, for tests.
uint64_t available_host_bytes(const std::string& root = "");

struct MemoryBudget {
  uint64_t bytes = 0;
  bool from_flag = false;  // Else: what is free now, less a reserve for everything else
};

// `flag`: --host-memory. Reads what is available from the kernel otherwise.
MemoryBudget host_budget(std::optional<uint64_t> flag);

// The same on the machine of a profile.
MemoryBudget host_budget(const HardwareProfile& hardware, std::optional<uint64_t> flag);

// `flag`: --device-memory. The device's free memory otherwise, less a reserve.
MemoryBudget device_budget(const MemoryInfo& memory, std::optional<uint64_t> flag);

// What a process may take of that by itself: of --device-memory all but what its context holds, as
// the device tells (other programs' share looks the same, so at most kDeviceProcessBytes); of what
// is free all, since the context is not in it.
uint64_t device_limit(const Device& device, const MemoryBudget& budget);

}  // namespace spillway
