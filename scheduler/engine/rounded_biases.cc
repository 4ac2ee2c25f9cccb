#include "scheduler/engine/rounded_biases.h"

#include <algorithm>

#include "kernels/base/checked_math.h"

namespace spillway {

namespace {

constexpr uint64_t kBiasAlignment = 256;

// The bias of the layer's only matmul whose output is in the activation dtype.
constexpr WeightRole kRole = WeightRole::kMlpUpBias;

uint64_t layer_bytes(int64_t columns, DType format) {
  return round_up(static_cast<uint64_t>(columns) * dtype_bytes(format), kBiasAlignment);
}

}  // namespace

uint64_t RoundedBiases::bytes(const ModelShape& shape, const LayerRange& layers, DType activation) {
  if (activation == DType::kF32) return 0;
  const WeightSpec bias = layer_spec(shape, kRole);
  return static_cast<uint64_t>(layers.count) * layer_bytes(bias.elements(), activation);
}

RoundedBiases::RoundedBiases(std::byte* memory, const ModelShape& shape, const LayerRange& layers,
                             DType activation)
    : memory_(memory),
      layers_(layers),
      format_(activation),
      columns_(layer_spec(shape, kRole).elements()),
      rounded_(static_cast<size_t>(layers.count), false) {}

const LayerWeights& RoundedBiases::round(Stream& stream, int64_t layer,
                                         const LayerWeights& weights) {
  weights_ = weights;
  if (weights.vector(kRole) == nullptr) return weights_;
  const auto index = static_cast<size_t>(layer - layers_.first);
  std::byte* memory = memory_ + index * layer_bytes(columns_, format_);
  if (!rounded_[index]) {
    const auto* bias = reinterpret_cast<const std::byte*>(weights.vector(kRole));
    convert_rows(stream, {.in = {bias, DType::kF32, 1, columns_, columns_},
                          .out = dense_matrix(memory, format_, 1, columns_)});
    rounded_[index] = true;
  }
  weights_.rounded(kRole) = memory;
  return weights_;
}

void RoundedBiases::forget() {
  std::fill(rounded_.begin(), rounded_.end(), false);
}

}  // namespace spillway
