// The 4-bit matrices of one layer in the format of activations, for a device that would otherwise
// expand them again for every part of a large block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/decoder_layer.h"
#include "scheduler/engine/sweep.h"

namespace spillway {

// Whether linear layers would expand the same weights more than once in a sweep of `batches`.
bool expands_again(std::span<const MicroBatch> batches);

class ExpandedLayer {
 public:
  // Bytes of all expanded matrices of a layer.
  static uint64_t bytes(const ModelShape& shape, DType activation);

  // `memory` holds bytes(...) of the device's memory.
  ExpandedLayer(std::byte* memory, DType activation) : memory_(memory), format_(activation) {}

  // Queues the expansion. Returns `weights` with the matrices replaced, valid until the next call.
  const LayerWeights& expand(Stream& stream, const LayerWeights& weights);

 private:
  WeightMatrix expanded(Stream& stream, const WeightMatrix& from, WeightSlab* slab, std::byte** at);

  std::byte* memory_;
  DType format_;
  std::array<WeightSlab, kWeightRoles> slabs_;
  LayerWeights weights_;
};

}  // namespace spillway
