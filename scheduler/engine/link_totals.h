// What has gone over the links between the tiers since an engine was opened. Plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace spillway {

enum class Link : uint8_t { kDiskToHost, kHostToDisk, kHostToDevice, kDeviceToHost };
constexpr size_t kLinks = 4;

struct LinkTotals {
  uint64_t bytes = 0;  // Weights, KV cache and activations; between host and device also what
                       // attention on the CPU takes and gives
  // Time in which at least one transfer was under way. None: nobody knows, since copies of a device
  // are queued and are not timed.
  std::optional<double> busy_seconds;
};

// By Link. None: the machine has no such link, or nothing is ever sent over it.
using LinkTable = std::array<std::optional<LinkTotals>, kLinks>;

}  // namespace spillway
