#include "kernels/base/weights.h"

#include <iterator>

#include "kernels/base/rank_shape.h"

namespace spillway {

namespace {

constexpr std::string_view kRoleNames[] = {
    "token_embedding",
    "position_embedding",
    "project_in",
    "attention_norm.weight",
    "attention_norm.bias",
    "qkv.weight",
    "qkv.bias",
    "query_norm.weight",
    "key_norm.weight",
    "attention_out.weight",
    "attention_out.bias",
    "mlp_norm.weight",
    "mlp_norm.bias",
    "mlp_up.weight",
    "mlp_up.bias",
    "mlp_down.weight",
    "mlp_down.bias",
    "final_norm.weight",
    "final_norm.bias",
    "project_out",
    "head",
};
static_assert(std::size(kRoleNames) == kWeightRoles);

class Lister {
 public:
  explicit Lister(const ModelShape& shape) : shape_(shape) {}

  void list_embedding() {
    const ModelShape& s = shape_;
    layer_ = -1;
    add(WeightRole::kTokenEmbedding, WeightKind::kTable, s.vocabulary, s.embedding);
    if (s.position == PositionKind::kLearned) {
      const int64_t rows = s.position_rows > 0 ? s.position_rows : s.positions + s.position_offset;
      add(WeightRole::kPositionEmbedding, WeightKind::kTable, rows, s.hidden);
    }
    if (s.embedding != s.hidden) matrix(WeightRole::kProjectIn, s.hidden, s.embedding);
  }

  void list_layer(int64_t layer) {
    const ModelShape& s = shape_;
    const int64_t up_rows = s.mlp_kind == MlpKind::kGated ? 2 * s.mlp : s.mlp;
    layer_ = layer;
    norm(WeightRole::kAttentionNormWeight, WeightRole::kAttentionNormBias);
    linear(WeightRole::kQkvWeight, WeightRole::kQkvBias, s.qkv_bias, s.qkv_width(), s.hidden);
    if (s.head_norm) {
      add(WeightRole::kQueryNormWeight, WeightKind::kVector, 1, s.head_size);
      add(WeightRole::kKeyNormWeight, WeightKind::kVector, 1, s.head_size);
    }
    linear(WeightRole::kAttentionOutWeight, WeightRole::kAttentionOutBias, s.attention_out_bias,
           s.hidden / s.ranks, s.query_width() * s.ranks);
    norm(WeightRole::kMlpNormWeight, WeightRole::kMlpNormBias);
    linear(WeightRole::kMlpUpWeight, WeightRole::kMlpUpBias, s.mlp_bias, up_rows, s.hidden);
    linear(WeightRole::kMlpDownWeight, WeightRole::kMlpDownBias, s.mlp_bias, s.hidden / s.ranks,
           s.mlp * s.ranks);
  }

  void list_head() {
    const ModelShape& s = shape_;
    layer_ = -1;
    if (s.final_norm) norm(WeightRole::kFinalNormWeight, WeightRole::kFinalNormBias);
    if (s.embedding != s.hidden) matrix(WeightRole::kProjectOut, s.embedding, s.hidden);
    matrix(WeightRole::kHead, head_rows(s.vocabulary, s.rank, s.ranks).count, s.embedding);
  }

  std::vector<WeightSpec> take() { return std::move(specs_); }

 private:
  void norm(WeightRole weight, WeightRole bias) {
    if (!shape_.norm_affine) return;
    add(weight, WeightKind::kVector, 1, shape_.hidden);
    if (shape_.norm == NormKind::kLayerNorm) add(bias, WeightKind::kVector, 1, shape_.hidden);
  }
  void linear(WeightRole weight, WeightRole bias, bool has_bias, int64_t rows, int64_t columns) {
    matrix(weight, rows, columns);
    if (has_bias) add(bias, WeightKind::kVector, 1, rows);
  }
  void matrix(WeightRole role, int64_t rows, int64_t columns) {
    add(role, WeightKind::kMatrix, rows, columns);
  }
  void add(WeightRole role, WeightKind kind, int64_t rows, int64_t columns) {
    specs_.push_back({role, kind, layer_, rows, columns});
  }

  const ModelShape& shape_;
  int64_t layer_ = -1;
  std::vector<WeightSpec> specs_;
};

}  // namespace

std::string_view role_name(WeightRole role) {
  return kRoleNames[static_cast<size_t>(role)];
}

std::optional<WeightRole> role_of_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kRoleNames); ++i) {
    if (kRoleNames[i] == name) return static_cast<WeightRole>(i);
  }
  return std::nullopt;
}

std::vector<WeightSpec> weight_specs(const ModelShape& shape) {
  Lister lister(shape);
  lister.list_embedding();
  for (int64_t layer = 0; layer < shape.layers; ++layer) lister.list_layer(layer);
  lister.list_head();
  return lister.take();
}

std::vector<WeightSpec> embedding_specs(const ModelShape& shape) {
  Lister lister(shape);
  lister.list_embedding();
  return lister.take();
}

std::vector<WeightSpec> layer_specs(const ModelShape& shape, int64_t layer) {
  Lister lister(shape);
  lister.list_layer(layer);
  return lister.take();
}

std::vector<WeightSpec> head_specs(const ModelShape& shape) {
  Lister lister(shape);
  lister.list_head();
  return lister.take();
}

WeightSpec layer_spec(const ModelShape& shape, WeightRole role) {
  for (const WeightSpec& spec : layer_specs(shape)) {
    if (spec.role == role) return spec;
  }
  return {role, WeightKind::kVector, 0, 0, 0};
}

Format named_format(WeightRole role, Format format) {
  return role == WeightRole::kHead && format == Format::kQ4 ? Format::kQ8 : format;
}

int64_t parameter_count(const ModelShape& shape) {
  int64_t count = 0;
  for (const WeightSpec& spec : weight_specs(shape)) {
    if (spec.role == WeightRole::kHead && shape.tied_head) continue;
    count += spec.elements();
  }
  return count;
}

}  // namespace spillway
