#include "scheduler/engine/expanded_layer.h"

#include "kernels/base/checked_math.h"

namespace spillway {

namespace {

constexpr uint64_t kAlignment = 256;

uint64_t expanded_bytes(int64_t rows, int64_t columns, DType format) {
  return round_up(static_cast<uint64_t>(rows * columns) * dtype_bytes(format), kAlignment);
}

}  // namespace

bool expands_again(std::span<const MicroBatch> batches) {
  int64_t times = 0;
  for (const MicroBatch& batch : batches) {
    const int64_t rest = batch.rows % kLayerChunkRows;
    times += batch.rows / kLayerChunkRows + (rest > kFewRows ? 1 : 0);
  }
  return times > 1;
}

uint64_t ExpandedLayer::bytes(const ModelShape& shape, DType activation) {
  uint64_t bytes = 0;
  for (const WeightSpec& spec : layer_specs(shape)) {
    if (spec.kind != WeightKind::kMatrix) continue;
    bytes += expanded_bytes(spec.rows, spec.columns, activation);
  }
  return bytes;
}

const LayerWeights& ExpandedLayer::expand(Stream& stream, const LayerWeights& weights) {
  weights_ = weights;
  std::byte* at = memory_;
  for (size_t i = 0; i < kWeightRoles; ++i) {
    WeightMatrix& matrix = weights_.matrix(static_cast<WeightRole>(i));
    if (matrix.rows != 0) matrix = expanded(stream, matrix, &slabs_[i], &at);
  }
  return weights_;
}

WeightMatrix ExpandedLayer::expanded(Stream& stream, const WeightMatrix& from, WeightSlab* slab,
                                     std::byte** at) {
  std::byte* memory = *at;
  *at += expanded_bytes(from.rows, from.columns, format_);
  expand_rows(stream,
              {.from = from, .out = dense_matrix(memory, format_, from.rows, from.columns)});
  *slab = {memory, from.rows};
  return {std::span(slab, 1), plain_format(format_), MatrixLayout::kRows, from.rows, from.columns,
          from.rows,          from.finite,           from.hadamard};
}

}  // namespace spillway
