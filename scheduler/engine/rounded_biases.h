// The biases of layers whose output is as narrow as the activations, in that format: what a library
// wants that adds them in a product's own epilogue. Rounded once, when a layer's weights are on the
// device for the first time, wherever they come from in later sweeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/layer_range.h"
#include "kernels/decoder_layer.h"

namespace spillway {

class RoundedBiases {
 public:
  // Of these layers; none where nothing is rounded.
  static uint64_t bytes(const ModelShape& shape, const LayerRange& layers, DType activation);

  // `memory` holds bytes(...) of the device's memory and is aligned to 256.
  RoundedBiases(std::byte* memory, const ModelShape& shape, const LayerRange& layers,
                DType activation);

  // Queues what the layer's first use needs. The result, until the next call, is `weights` with
  // their rounded biases.
  const LayerWeights& round(Stream& stream, int64_t layer, const LayerWeights& weights);

  // Work that was queued may not have been done: all layers are rounded again.
  void forget();

 private:
  std::byte* memory_;
  LayerRange layers_;
  DType format_;
  int64_t columns_;
  std::vector<bool> rounded_;  // By layer of these
  LayerWeights weights_;
};

}  // namespace spillway
