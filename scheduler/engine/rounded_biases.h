// Biases rounded to the activations' format, for layers whose output has that format: a library
// that adds biases in a matmul's epilogue requires it. Rounded once, when a layer's weights are on
// the device for the first time, wherever they come from in later sweeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/layer_range.h"
#include "kernels/decoder_layer.h"

namespace spillway {

class RoundedBiases {
 public:
  // Bytes for the biases of `layers`; 0 where nothing is rounded.
  static uint64_t bytes(const ModelShape& shape, const LayerRange& layers, DType activation);

  // `memory` holds bytes(...) of the device's memory and is aligned to 256.
  RoundedBiases(std::byte* memory, const ModelShape& shape, const LayerRange& layers,
                DType activation);

  // Queues the rounding on the layer's first use. Returns `weights` with rounded biases, valid
  // until the next call.
  const LayerWeights& round(Stream& stream, int64_t layer, const LayerWeights& weights);

  // Makes all layers be rounded again, after an error: queued work may not have been done.
  void forget();

 private:
  std::byte* memory_;
  LayerRange layers_;
  DType format_;
  int64_t columns_;
  std::vector<bool> rounded_;  // By layer in layers_
  LayerWeights weights_;
};

}  // namespace spillway
