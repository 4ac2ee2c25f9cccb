// The linear layers of a model: the matrices among its weight_specs, those of all layers counted
// once. Pure function, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/weights.h"

namespace spillway {

// A linear layer's shape, and how many of it one sweep runs.
struct LinearShape {
  WeightRole role = WeightRole::kHead;
  int64_t outputs = 0, inputs = 0;
  int64_t count = 0;
  bool in_layer = false;  // One in every decoder layer
  bool head = false;      // Runs on the rows that get logits instead of all tokens
  // In the last layer: outputs that every row needs; only rows that get logits need the others.
  int64_t last_outputs = 0;
};

// Shapes of a decoder layer, then those before and after the layers, each in streaming order.
std::vector<LinearShape> linear_shapes(const ModelShape& shape);

}  // namespace spillway
