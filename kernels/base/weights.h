// The canonical list of a model's weights: what the packed file stores, the weight store loads
// and the decoder layer reads, in streaming order. Made from the ModelShape alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/model_shape.h"

namespace spillway {

enum class WeightRole : uint8_t {
  kTokenEmbedding,       // table [vocabulary, embedding]
  kPositionEmbedding,    // table [positions + offset, hidden]
  kProjectIn,            // matrix [hidden, embedding]
  kAttentionNormWeight,  // vector [hidden]; so all *Norm* roles
  kAttentionNormBias,
  kQkvWeight,  // matrix [qkv_width, hidden]: all query heads, then key heads, then value heads
  kQkvBias,    // vector [qkv_width]
  kQueryNormWeight,     // vector [head_size]
  kKeyNormWeight,       // vector [head_size]
  kAttentionOutWeight,  // matrix [hidden, query_width]
  kAttentionOutBias,
  kMlpNormWeight,
  kMlpNormBias,
  kMlpUpWeight,  // matrix [mlp, hidden]; gated: [2 * mlp, hidden], gate rows first
  kMlpUpBias,
  kMlpDownWeight,  // matrix [hidden, mlp]
  kMlpDownBias,
  kFinalNormWeight,
  kFinalNormBias,
  kProjectOut,  // matrix [embedding, hidden]
  kHead,        // matrix [vocabulary, embedding]; written out even when tied
};

constexpr size_t kWeightRoles = static_cast<size_t>(WeightRole::kHead) + 1;

std::string_view role_name(WeightRole role);
std::optional<WeightRole> role_of_name(std::string_view name);

// kVector: float32, used whole. kTable: row-major, rows are looked up. kMatrix: y = x W^T,
// `rows` outputs by `columns` inputs, stored in a kernel's layout (weight_layout.h).
enum class WeightKind : uint8_t { kVector, kTable, kMatrix };

struct WeightSpec {
  WeightRole role = WeightRole::kTokenEmbedding;
  WeightKind kind = WeightKind::kVector;
  int64_t layer = -1;  // -1: before the first layer or after the last.
  int64_t rows = 1;
  int64_t columns = 0;

  int64_t elements() const { return rows * columns; }
  friend bool operator==(const WeightSpec&, const WeightSpec&) = default;
};

// In streaming order: embeddings, layer 0, ..., layer N-1, final norm, head. Of a rank's shape
// (rank_shape.h) those of the layers and the head are the rank's own; the embeddings, which only
// the first has, are listed whole.
std::vector<WeightSpec> weight_specs(const ModelShape& shape);

// The three parts of that list. All layers have the same weights.
std::vector<WeightSpec> embedding_specs(const ModelShape& shape);
std::vector<WeightSpec> layer_specs(const ModelShape& shape, int64_t layer = 0);
std::vector<WeightSpec> head_specs(const ModelShape& shape);

// One of layer_specs; without rows and columns where the model's layers have no such weight.
WeightSpec layer_spec(const ModelShape& shape, WeightRole role);

// The format that a matrix or table has in a model whose weights are in `format`, as --format names
// it: the LM head of a q4 model is in q8. It is 3 % of a model of 7 billion parameters, and with it
// in 4 bits every logit has an error of its own (docs/benchmarks/history.md: perplexity 29.0,
// not 30.5).
Format named_format(WeightRole role, Format format);

// Parameters of the model; a tied head is counted once.
int64_t parameter_count(const ModelShape& shape);

}  // namespace spillway
