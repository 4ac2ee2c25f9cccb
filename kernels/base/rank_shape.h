// What each of several ranks that share every layer of a model has of it (tensor parallelism): its
// heads, with their part of the KV cache, its part of the MLP's inner width, and of the matrices
// that add to the residual stream its part of the outputs. All matrices are split by outputs, none
// by inputs as in Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053), so that every sum is made
// whole on one rank, and the tokens do not depend on the number of ranks. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "kernels/base/weights.h"

namespace spillway {

// The shape of rank `rank` of `ranks`, with that many heads, KV heads and inner units of the MLP;
// the embeddings are those of rank 0 alone. kInvalidArgument: the model cannot be divided
// so; the message says by what it can. REQUIRES: a valid shape of a whole model; rank < ranks.
Result<ModelShape> rank_shape(const ModelShape& whole, int64_t rank, int64_t ranks);

// Rows of a weight of the whole model.
struct RowSpan {
  int64_t first = 0, count = 0;
  friend bool operator==(const RowSpan&, const RowSpan&) = default;
};

// The rank's part of the LM head's rows: whole panels (weight_layout.h) where that leaves rows for
// every rank, so that the last may have fewer. REQUIRES: rank_shape() gives a shape.
RowSpan head_rows(int64_t vocabulary, int64_t rank, int64_t ranks);

// The rows of the whole model's weight that make the rank's, in order; of a vector, its numbers.
// REQUIRES: `spec` is of `whole`; rank_shape() gives a shape.
std::vector<RowSpan> rank_rows(const ModelShape& whole, const WeightSpec& spec, int64_t rank,
                               int64_t ranks);

}  // namespace spillway
