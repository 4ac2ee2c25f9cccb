#include "offload/weight_views.h"

namespace spillway {

namespace {

WeightMatrix matrix_of(const TensorInfo& tensor, MatrixLayout layout,
                       std::span<const WeightSlab> slabs, bool finite) {
  return {slabs,  tensor.format,  layout, tensor.spec.rows, tensor.spec.columns, tensor.slab_rows,
          finite, tensor.hadamard};
}

}  // namespace

WeightViews::WeightViews(const ModelFileTable& table, MatrixLayout layout)
    : slabs_(table.slabs.size()) {
  const ModelShape& shape = table.shape;
  layers.resize(static_cast<size_t>(shape.layers));
  std::vector<uint32_t> first(table.tensors.size());
  uint32_t count = 0;
  for (size_t i = 0; i < table.tensors.size(); ++i) {
    first[i] = count;
    if (table.tensors[i].spec.kind != WeightKind::kVector) count += table.tensors[i].slab_count;
  }
  views_.resize(count);
  const bool finite = table.non_finite().empty();
  LayerWeights* group = &embedding;  // The table has the embeddings, the layers, then the head.
  for (size_t i = 0; i < table.tensors.size(); ++i) {
    const TensorInfo& tensor = table.tensors[i];
    if (tensor.spec.layer >= 0) {
      group = &layers[static_cast<size_t>(tensor.spec.layer)];
    } else if (group != &embedding) {
      group = &head;
    }
    const WeightRole role = tensor.spec.role;
    if (tensor.spec.kind == WeightKind::kVector) {
      slabs_[tensor.first_slab].vectors.push_back({&group->vector(role), tensor.offset_in_slab});
      continue;
    }
    const bool is_matrix = tensor.spec.kind == WeightKind::kMatrix;
    group->matrix(role) = matrix_of(tensor, is_matrix ? layout : MatrixLayout::kRows,
                                    {views_.data() + first[i], tensor.slab_count}, finite);
    for (uint32_t slab = 0; slab < tensor.slab_count; ++slab) {
      WeightSlab& view = views_[first[i] + slab];
      view.rows = tensor.rows_in_slab(slab);
      slabs_[tensor.first_slab + slab].matrix = &view;
    }
  }
}

void WeightViews::place(uint32_t slab, const std::byte* data) {
  const Slab& views = slabs_[slab];
  if (views.matrix != nullptr) views.matrix->data = data;
  for (const Vector& vector : views.vectors) {
    *vector.view = reinterpret_cast<const float*>(data + vector.offset);
  }
}

}  // namespace spillway
