// The kernels' views of a model's weights: they point into slabs, wherever those are at the moment.
// Owns no weights. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/decoder_layer.h"
#include "offload/model_file/model_file.h"

namespace spillway {

class WeightViews {
 public:
  // `layout`: of the matrices.
  WeightViews(const ModelFileTable& table, MatrixLayout layout);
  WeightViews(const WeightViews&) = delete;
  WeightViews& operator=(const WeightViews&) = delete;

  // Points the slab's views to its bytes at `data`.
  void place(uint32_t slab, const std::byte* data);

  LayerWeights embedding, head;
  std::vector<LayerWeights> layers;

 private:
  struct Vector {
    const float** view;
    uint64_t offset;
  };
  // The views into a slab: rows of one matrix, or all vectors of a layer.
  struct Slab {
    WeightSlab* matrix = nullptr;
    std::vector<Vector> vectors;
  };

  std::vector<WeightSlab> views_;  // All matrices and tables, tensor by tensor
  std::vector<Slab> slabs_;
};

}  // namespace spillway
