// How many of a model's layers each pipeline stage gets: so many that the slowest stage is as fast
// as possible, since it sets the pace of all (GPipe, arXiv 1811.06965). Pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spillway {

struct StageMachine {
  double speed = 1;           // Layers in a unit of time, beside the others'
  uint64_t memory_bytes = 0;  // For weights and KV cache
  uint64_t other_bytes = 0;   // Of these, what the stage holds beside layers: embeddings, head
  double other_layers = 0;    // Its work beside layers, in layers
};

// REQUIRES: at least as many layers as stages. A layer takes `layer_bytes`, weights and cache; one
// that finds no room is read in every sweep, which takes much longer.
std::vector<int64_t> split_layers(int64_t layers, uint64_t layer_bytes,
                                  std::span<const StageMachine> stages);

}  // namespace spillway
