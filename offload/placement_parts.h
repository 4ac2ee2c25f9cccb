// What the placements over two tiers (placement.cc) and three (device_placement.cc) share. Pure
// arithmetic, any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "offload/placement.h"

namespace spillway {

// Of the memory that weights and KV cache share when the weights do not fit: a block grows with the
// cache while a sweep costs what is left of the weights. A rule of thumb, until a search knows the
// machine.
constexpr double kKvShareWhenStreaming = 0.5;

// Layers of the longest sequence that a KV ring holds: one in use, some on their way.
constexpr uint64_t kStagedLayers = 4;
constexpr uint64_t kStagingBytesGood = uint64_t{256} << 20;

// a - b, not below 0.
inline uint64_t minus(uint64_t a, uint64_t b) {
  return a - std::min(a, b);
}

// As a flag takes it, rounded up.
inline std::string mebibytes(uint64_t bytes) {
  return std::to_string((bytes >> 20) + 1) + "MiB";
}

// What so many bytes of memory's KV cache take on disk, where a layer of the longest sequence takes
// `layer_on_disk`.
inline uint64_t kv_bytes_on_disk(const PlacementRequest& request, uint64_t layer_on_disk,
                                 double bytes) {
  const auto longest = static_cast<double>(std::max<uint64_t>(1, request.kv_sequence_bytes_max));
  return static_cast<uint64_t>(
      std::ceil(bytes / longest * static_cast<double>(layer_on_disk * request.kv_layers)));
}

}  // namespace spillway
