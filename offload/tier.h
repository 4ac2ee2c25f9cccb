// The tiers on which bytes live, from the fastest to the largest.
#pragma once

#include <cstdint>

namespace spillway {

// On a CPU device the device's memory is the host's, and nothing lives on kHost. kNone: on no tier
// of this engine, such as the weights of layers that another engine runs.
enum class Tier : uint8_t { kDevice, kHost, kDisk, kNone };

// Bytes of one kind (weights, KV, activations) on each tier.
struct TierBytes {
  uint64_t device = 0, host = 0, disk = 0;
  uint64_t sum() const { return device + host + disk; }
  friend bool operator==(const TierBytes&, const TierBytes&) = default;
};

// Bytes of the staging rings in front of one link, by the kind of data.
struct RingBytes {
  uint64_t weights = 0, kv = 0, activations = 0;
  uint64_t sum() const { return weights + kv + activations; }
};

}  // namespace spillway
