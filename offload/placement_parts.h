// What the placements over two tiers (placement.cc) and three (device_placement.cc) share. Pure
// arithmetic, any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/checked_math.h"
#include "offload/io.h"
#include "offload/placement.h"

namespace spillway {

// Of the memory that weights and KV cache share when the weights do not fit: a block grows with the
// cache while a sweep costs what is left of the weights. A rule of thumb, until a search knows the
// machine.
constexpr double kKvShareWhenStreaming = 0.5;

// A ring for KV on disk: at least a few layers of the longest sequence, one in use and some on their
// way; better a layer of the whole block and a part of the next. A smaller one fills up during a
// layer's products, and what it had no room for is read during its attention, behind the next
// layers' weights (opt-6.7b, 160 sequences, weights and cache on disk: 256 MiB for layers of 320
// waited 3.5 s of each step of 10). Never more than a part of the memory for weights and cache.
constexpr uint64_t kStagedLayers = 4;
constexpr uint64_t kStagingBytesGood = uint64_t{256} << 20;
constexpr double kStagedBlockLayers = 1.25;
constexpr uint64_t kStagingPart = 4;

// a - b, not below 0.
inline uint64_t minus(uint64_t a, uint64_t b) {
  return a - std::min(a, b);
}

// As a flag takes it, rounded up.
inline std::string mebibytes(uint64_t bytes) {
  return std::to_string((bytes >> 20) + 1) + "MiB";
}

// Sizes of that ring, best first, for `kv_disk` bytes of cache on disk; `staged_layer` is the least.
inline std::vector<uint64_t> kv_staging_sizes(const PlacementRequest& request, uint64_t kv_disk,
                                              uint64_t staged_layer, uint64_t room) {
  const uint64_t good = std::max(kStagedLayers * staged_layer, kStagingBytesGood);
  const double layers = static_cast<double>(std::max<uint64_t>(1, request.kv_layers));
  const auto block =
      static_cast<uint64_t>(kStagedBlockLayers * static_cast<double>(kv_disk) / layers);
  std::vector<uint64_t> sizes = {good, staged_layer};
  const uint64_t best = round_up(std::min(block, room / kStagingPart), kIoAlignment);
  if (best > good) sizes.insert(sizes.begin(), best);
  return sizes;
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
