// LayerRange: consecutive layers of a model, such as those of one engine where several run a model
// as pipeline stages. The embeddings go with the model's first layer, the final norm and the head
// with its last. Layers keep their numbers in the model. Plain values, any thread.
#pragma once

#include <cstdint>

#include "kernels/base/model_shape.h"

namespace spillway {

struct LayerRange {
  int64_t first = 0, count = 0;

  int64_t end() const { return first + count; }
  bool contains(int64_t layer) const { return layer >= first && layer < end(); }
  // Of several ranks that share every layer the first embeds, and all share the head.
  bool embeds(const ModelShape& shape) const { return first == 0 && shape.rank == 0; }
  bool has_head(const ModelShape& shape) const { return end() == shape.layers; }

  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

inline LayerRange all_layers(const ModelShape& shape) {
  return {0, shape.layers};
}

}  // namespace spillway
