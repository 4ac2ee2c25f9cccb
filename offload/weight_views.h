// What the kernels see of a model's weights: views that point into slabs, wherever these are just
// now. Owns no weights. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/decoder_layer.h"
#include "offload/model_file/model_file.h"

namespace spillway {

struct EmbeddingWeights {
  WeightMatrix tokens;
  WeightMatrix positions;   // No rows: the model has no table of positions.
  WeightMatrix project_in;  // No rows: embeddings are as wide as the stream.
};

struct HeadWeights {
  const float* norm_weight = nullptr;
  const float* norm_bias = nullptr;
  WeightMatrix project_out;
  WeightMatrix head;
};

class WeightViews {
 public:
  // `layout` is that of the matrices.
  WeightViews(const ModelFileTable& table, MatrixLayout layout);
  WeightViews(const WeightViews&) = delete;
  WeightViews& operator=(const WeightViews&) = delete;

  // The slab's bytes are at `data` from now on.
  void place(uint32_t slab, const std::byte* data);

  EmbeddingWeights embedding;
  HeadWeights head;
  std::vector<LayerWeights> layers;

 private:
  struct Vector {
    const float** view;
    uint64_t offset;
  };
  // What points into a slab: one stretch of a matrix, or all vectors of a layer.
  struct Slab {
    WeightSlab* matrix = nullptr;
    std::vector<Vector> vectors;
  };

  std::vector<WeightSlab> views_;  // Of all matrices and tables, tensor by tensor
  std::vector<Slab> slabs_;
};

}  // namespace spillway
