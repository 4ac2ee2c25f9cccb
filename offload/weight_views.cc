#include "offload/weight_views.h"

#include "kernels/base/check.h"

namespace spillway {

namespace {

WeightMatrix matrix_of(const TensorInfo& tensor, MatrixLayout layout,
                       std::span<const WeightSlab> slabs, bool finite) {
  return {slabs, tensor.format, layout, tensor.spec.rows, tensor.spec.columns, tensor.slab_rows,
          finite};
}

// Where a role's view goes. Exactly one of the two is set.
struct Target {
  WeightMatrix* matrix = nullptr;
  const float** vector = nullptr;
};

Target target_of(WeightRole role, LayerWeights* layer, EmbeddingWeights* embedding,
                 HeadWeights* head) {
  switch (role) {
    case WeightRole::kTokenEmbedding:
      return {&embedding->tokens};
    case WeightRole::kPositionEmbedding:
      return {&embedding->positions};
    case WeightRole::kProjectIn:
      return {&embedding->project_in};
    case WeightRole::kAttentionNormWeight:
      return {nullptr, &layer->attention_norm_weight};
    case WeightRole::kAttentionNormBias:
      return {nullptr, &layer->attention_norm_bias};
    case WeightRole::kQkvWeight:
      return {&layer->qkv};
    case WeightRole::kQkvBias:
      return {nullptr, &layer->qkv_bias};
    case WeightRole::kAttentionOutWeight:
      return {&layer->attention_out};
    case WeightRole::kAttentionOutBias:
      return {nullptr, &layer->attention_out_bias};
    case WeightRole::kMlpNormWeight:
      return {nullptr, &layer->mlp_norm_weight};
    case WeightRole::kMlpNormBias:
      return {nullptr, &layer->mlp_norm_bias};
    case WeightRole::kMlpUpWeight:
      return {&layer->mlp_up};
    case WeightRole::kMlpUpBias:
      return {nullptr, &layer->mlp_up_bias};
    case WeightRole::kMlpDownWeight:
      return {&layer->mlp_down};
    case WeightRole::kMlpDownBias:
      return {nullptr, &layer->mlp_down_bias};
    case WeightRole::kFinalNormWeight:
      return {nullptr, &head->norm_weight};
    case WeightRole::kFinalNormBias:
      return {nullptr, &head->norm_bias};
    case WeightRole::kProjectOut:
      return {&head->project_out};
    case WeightRole::kHead:
      return {&head->head};
  }
  SPILLWAY_CHECK(false);
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
  for (size_t i = 0; i < table.tensors.size(); ++i) {
    const TensorInfo& tensor = table.tensors[i];
    LayerWeights* layer =
        tensor.spec.layer < 0 ? nullptr : &layers[static_cast<size_t>(tensor.spec.layer)];
    const Target target = target_of(tensor.spec.role, layer, &embedding, &head);
    if (target.vector != nullptr) {
      slabs_[tensor.first_slab].vectors.push_back({target.vector, tensor.offset_in_slab});
      continue;
    }
    const bool is_matrix = tensor.spec.kind == WeightKind::kMatrix;
    *target.matrix = matrix_of(tensor, is_matrix ? layout : MatrixLayout::kRows,
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
