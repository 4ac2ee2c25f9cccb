// The shapes of tests: the one place that fills in a ModelShape.
#pragma once

#include "kernels/base/model_shape.h"
#include "kernels/base/rotary.h"

namespace spillway::test {

// What test shapes differ in. The defaults make a model small enough that a sweep takes
// microseconds and large enough to have more than one head, slab and micro-batch.
struct Sizes {
  int64_t layers = 2;
  int64_t hidden = 32;  // A multiple of heads
  int64_t heads = 2;
  int64_t mlp = 64;
  int64_t vocabulary = 100;
  int64_t positions = 64;
};

inline ModelShape make_shape(const Sizes& sizes) {
  ModelShape shape;
  shape.layers = sizes.layers;
  shape.hidden = shape.embedding = sizes.hidden;
  shape.heads = shape.kv_heads = sizes.heads;
  shape.head_size = sizes.hidden / sizes.heads;
  shape.mlp = sizes.mlp;
  shape.vocabulary = sizes.vocabulary;
  shape.positions = sizes.positions;
  return shape;
}

inline ModelShape tiny_shape(int64_t layers = 2) {
  ModelShape shape = make_shape({.layers = layers});
  shape.name = "tiny";
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
  shape.set_biases(false);
  return shape;
}

// A Llama: RMSNorm, rotary positions, a gated MLP, grouped heads, no biases.
inline ModelShape rotary_shape(int64_t layers = 3) {
  ModelShape shape = gated_shape();
  shape.layers = layers;
  shape.embedding = shape.hidden;
  shape.position_offset = 0;
  shape.position = PositionKind::kRotary;
  shape.rotary.dims = shape.head_size;
  shape.rotary.frequencies = rotary_frequencies(10000, shape.head_size);
  shape.activation = Activation::kSilu;
  return shape;
}

}  // namespace spillway::test
