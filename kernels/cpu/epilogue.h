// Epilogue of a finished tile of a matrix product: bias, activation, gate, residual sum, store.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/model_shape.h"

namespace spillway::cpu {

struct TileStore {
  const float* tile = nullptr;  // [rows][64], 64-byte aligned
  int64_t rows = 0;
  int64_t columns = 0;          // <= 64
  const float* bias = nullptr;  // [columns] or null
  Activation activation = Activation::kNone;
  // With a gate, of the tile's form, the activation is the gate's: act(gate + gate_bias) * (tile +
  // bias).
  const float* gate = nullptr;
  const float* gate_bias = nullptr;
  float scale = 1.0f;       // Of the tile; other than 1 with neither bias, activation nor gate
  bool accumulate = false;  // out += (out is f32); without a gate
  std::byte* out = nullptr;
  DType out_dtype = DType::kF32;  // kF32 or kBF16
  int64_t out_stride = 0;         // Elements
};

void store_tile(const TileStore& store);

}  // namespace spillway::cpu
