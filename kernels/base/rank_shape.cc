#include "kernels/base/rank_shape.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace spillway {

Result<ModelShape> rank_shape(const ModelShape& whole, int64_t rank, int64_t ranks) {
  const int64_t most =
      std::gcd(std::gcd(whole.heads, whole.kv_heads), std::gcd(whole.mlp, whole.hidden));
  if (most % ranks != 0 || whole.vocabulary < ranks * ranks) {
    std::string counts;
    for (int64_t n = 2; n <= most; ++n) {
      if (most % n == 0) counts += (counts.empty() ? "" : ", ") + std::to_string(n);
    }
    return invalid_argument(
        "the layers of " + whole.name + " cannot be divided among " + std::to_string(ranks) +
        " ranks: it has " + std::to_string(whole.heads) + " heads, " +
        std::to_string(whole.kv_heads) + " KV heads, hidden size " + std::to_string(whole.hidden) +
        " and MLP width " + std::to_string(whole.mlp) + ", of which each needs the same share; " +
        (counts.empty() ? "it takes one rank alone" : "the ranks may be " + counts));
  }
  ModelShape shape = whole;
  shape.ranks = ranks;
  shape.rank = rank;
  shape.heads /= ranks;
  shape.kv_heads /= ranks;
  shape.mlp /= ranks;
  return shape;
}

RowSpan head_rows(int64_t vocabulary, int64_t rank, int64_t ranks) {
  constexpr int64_t kPanel = 64;
  int64_t share = (vocabulary + ranks - 1) / ranks;
  const int64_t panels = (share + kPanel - 1) / kPanel * kPanel;
  if ((ranks - 1) * panels < vocabulary) share = panels;
  return {rank * share, std::min(share, vocabulary - rank * share)};
}

std::vector<RowSpan> rank_rows(const ModelShape& whole, const WeightSpec& spec, int64_t rank,
                               int64_t ranks) {
  // The rank's share of rows that begin at `first`.
  const auto share = [&](int64_t first, int64_t rows) {
    return RowSpan{first + rank * (rows / ranks), rows / ranks};
  };
  switch (spec.role) {
    case WeightRole::kQkvWeight:
    case WeightRole::kQkvBias:
      return {share(0, whole.query_width()), share(whole.query_width(), whole.kv_width()),
              share(whole.query_width() + whole.kv_width(), whole.kv_width())};
    case WeightRole::kMlpUpWeight:
    case WeightRole::kMlpUpBias:
      if (whole.mlp_kind == MlpKind::kGated) {
        return {share(0, whole.mlp), share(whole.mlp, whole.mlp)};
      }
      return {share(0, whole.mlp)};
    case WeightRole::kAttentionOutWeight:
    case WeightRole::kAttentionOutBias:
    case WeightRole::kMlpDownWeight:
    case WeightRole::kMlpDownBias:
      return {share(0, whole.hidden)};
    case WeightRole::kHead:
      return {head_rows(whole.vocabulary, rank, ranks)};
    default:
      return {{0, spec.kind == WeightKind::kVector ? spec.columns : spec.rows}};
  }
}

}  // namespace spillway
