// What the kernels see of a model's weights: views that point into slabs, wherever these are just
// now. Owns no weights. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/decoder_layer.h"
#include "offload/model_file/model_file.h"

namespace spillway {

class WeightViews {
 public:
  // `layout` is that of the matrices.
  WeightViews(const ModelFileTable& table, MatrixLayout layout);
  WeightViews(const WeightViews&) = delete;
  WeightViews& operator=(const WeightViews&) = delete;

  // The slab's bytes are at `data` from now on.
  void place(uint32_t slab, const std::byte* data);

  LayerWeights embedding, head;
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
