// A model small enough that a sweep takes microseconds and large enough to have more than one head,
// slab and micro-batch.
#pragma once

#include "kernels/base/model_shape.h"

namespace spillway::test {

inline ModelShape tiny_shape(int64_t layers = 2) {
  ModelShape shape;
  shape.name = "tiny";
  shape.layers = layers;
  shape.hidden = shape.embedding = 32;
  shape.heads = shape.kv_heads = 2;
  shape.head_size = 16;
  shape.mlp = 64;
  shape.vocabulary = 100;
  shape.positions = 64;
  shape.position_offset = 2;
  shape.eos_tokens = {2};
  return shape;
}

// What no checkpoint of OPT has: a gated MLP, fewer KV heads than query heads, projections around
// the layers, RMSNorm, no biases.
inline ModelShape gated_shape() {
  ModelShape shape = tiny_shape(3);
  shape.embedding = 16;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_size = 8;
  shape.mlp = 80;
  shape.norm = NormKind::kRmsNorm;
  shape.mlp_kind = MlpKind::kGated;
  shape.bias = false;
  return shape;
}

}  // namespace spillway::test
