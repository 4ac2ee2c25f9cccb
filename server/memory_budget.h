// How much memory of host and device a run may take.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "policy/hardware_profile.h"

namespace spillway {

// Taken by what no plan counts: code, threads, tokenizer, sockets, scratch.
constexpr uint64_t kProcessBytes = uint64_t{256} << 20;

// The same on a device with memory of its own: context, kernels, cuBLAS and its workspace, the ops'
// scratch. A guess: the scratch is counted (MemoryInfo), the rest is what `bench` shows as
// other_device_bytes on a device that nobody else uses.
constexpr uint64_t kDeviceProcessBytes = uint64_t{768} << 20;

// Bytes that this process may still take: what is available, also in its memory group.
uint64_t available_host_bytes();

struct MemoryBudget {
  uint64_t bytes = 0;
  bool from_flag = false;  // Else: what is free now, less a reserve for everything else
};

// `flag`: --host-memory. Reads what is available from the kernel otherwise.
MemoryBudget host_budget(std::optional<uint64_t> flag);

// The same on the machine of a profile.
MemoryBudget host_budget(const HardwareProfile& hardware, std::optional<uint64_t> flag);

// `flag`: --device-memory. The device's free memory otherwise, less a reserve.
MemoryBudget device_budget(const Device& device, std::optional<uint64_t> flag);

// What a process may take of that by itself: of --device-memory all but what its context holds, as
// the device tells (other programs' share looks the same, so at most kDeviceProcessBytes); of what
// is free all, since the context is not in it.
uint64_t device_limit(const Device& device, const MemoryBudget& budget);

}  // namespace spillway
