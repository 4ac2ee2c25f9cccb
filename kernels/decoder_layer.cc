#include "kernels/decoder_layer.h"

#include <algorithm>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"

namespace spillway {

namespace {

class LayerRun {
 public:
  LayerRun(Stream& stream, const ModelShape& shape, const LayerWeights& weights,
           const LayerBuffers& buffers, const MatrixView& hidden, const InputObserver& observer)
      : stream_(stream),
        shape_(shape),
        weights_(weights),
        buffers_(buffers),
        hidden_(hidden),
        observer_(observer) {}

  void attend(const ConstMatrixView& rotary, AttentionFeed& feed, const KvLayout& kv,
              int64_t window) {
    const MatrixView qkv = qkv_rows(shape_, buffers_, hidden_.rows);
    const MatrixView attended = attended_rows(shape_, buffers_, hidden_.rows);
    for_chunks([&](int64_t first, int64_t rows) {
      const LayerInput input = layer_input(first, rows, kAttentionNorm);
      observe(WeightRole::kQkvWeight, input.rows);
      linear(stream_, {.in = input.rows,
                       .weight = weights_.matrix(WeightRole::kQkvWeight),
                       .bias = weights_.vector(WeightRole::kQkvBias),
                       .out = qkv.slice_rows(first, rows),
                       .norm = input.norm});
    });
    const bool hadamard = is_quantized(kv.format) && hadamard_size(shape_.head_size) > 1;
    if (rotary.columns > 0 || shape_.head_norm || hadamard) {
      rotate_heads(stream_, {.qkv = qkv,
                             .heads = shape_.heads,
                             .kv_heads = shape_.kv_heads,
                             .head_size = shape_.head_size,
                             .query_norm = weights_.vector(WeightRole::kQueryNormWeight),
                             .key_norm = weights_.vector(WeightRole::kKeyNormWeight),
                             .epsilon = shape_.norm_epsilon,
                             .table = rotary,
                             .interleaved = shape_.rotary.interleaved,
                             .hadamard = hadamard});
    }
    for (auto items = feed.next(); !items.empty(); items = feed.next()) {
      attention(stream_, {.qkv = qkv,
                          .items = items,
                          .heads = shape_.heads,
                          .kv = kv,
                          .out = attended,
                          .window = window,
                          .scale = shape_.attention_scale});
    }
  }

  Status finish() {
    if (!shape_.parallel) {
      SPILLWAY_RETURN_IF_ERROR(add_all_attended());
      if (shape_.norm_place == NormPlace::kPost) norm(hidden_, kAttentionNorm, hidden_);
    }
    Status status;
    for_chunks([&](int64_t first, int64_t rows) {
      const MatrixView inner = expand(first, rows);
      // The MLP has read the layer's input now.
      if (status.ok() && shape_.parallel) status = add_attended(first, rows);
      if (!status.ok()) return;
      status = add_to_hidden(inner, hidden_.slice_rows(first, rows), WeightRole::kMlpDownWeight,
                             WeightRole::kMlpDownBias);
    });
    SPILLWAY_RETURN_IF_ERROR(status);
    if (shape_.norm_place == NormPlace::kPost) norm(hidden_, kMlpNorm, hidden_);
    return {};
  }

 private:
  struct Norm {
    WeightRole weight, bias;
  };
  static constexpr Norm kAttentionNorm = {WeightRole::kAttentionNormWeight,
                                          WeightRole::kAttentionNormBias};
  static constexpr Norm kMlpNorm = {WeightRole::kMlpNormWeight, WeightRole::kMlpNormBias};

  void observe(WeightRole weight, const ConstMatrixView& in) const {
    if (observer_) observer_(weight, in);
  }

  template <class Body>
  void for_chunks(const Body& body) {
    for (int64_t first = 0; first < hidden_.rows; first += kLayerChunkRows) {
      body(first, std::min(kLayerChunkRows, hidden_.rows - first));
    }
  }

  Status add_attended(int64_t first, int64_t rows) {
    const MatrixView attended = attended_rows(shape_, buffers_, hidden_.rows);
    return add_to_hidden(attended.slice_rows(first, rows), hidden_.slice_rows(first, rows),
                         WeightRole::kAttentionOutWeight, WeightRole::kAttentionOutBias);
  }

  Status add_all_attended() {
    if (buffers_.ranks == nullptr) return add_attended(0, hidden_.rows);
    Status status;
    for_chunks([&](int64_t first, int64_t rows) {
      if (status.ok()) status = add_attended(first, rows);
    });
    return status;
  }

  // The MLP's inner activations: [rows, mlp].
  MatrixView expand(int64_t first, int64_t rows) {
    const WeightMatrix& up = weights_.matrix(WeightRole::kMlpUpWeight);
    const float* const bias = weights_.vector(WeightRole::kMlpUpBias);
    const std::byte* const rounded_bias = weights_.rounded(WeightRole::kMlpUpBias);
    const MatrixView inner = dense_matrix(buffers_.inner, buffers_.activation, rows, up.rows);
    const LayerInput input = layer_input(first, rows, kMlpNorm);
    observe(WeightRole::kMlpUpWeight, input.rows);
    if (shape_.mlp_kind == MlpKind::kGated) {
      return linear_gated(stream_, {.in = input.rows,
                                    .weight = up,
                                    .bias = bias,
                                    .rounded_bias = rounded_bias,
                                    .activation = shape_.activation,
                                    .inner = inner,
                                    .norm = input.norm});
    }
    linear(stream_, {.in = input.rows,
                     .weight = up,
                     .bias = bias,
                     .rounded_bias = rounded_bias,
                     .activation = shape_.activation,
                     .out = inner,
                     .norm = input.norm});
    return inner;
  }

  // Input of a sublayer's first linear layer: the stream itself with post-norm, else the rows after
  // the norm, which that layer computes unless an observer looks at them.
  struct LayerInput {
    ConstMatrixView rows;
    std::optional<NormArgs> norm;
  };
  LayerInput layer_input(int64_t first, int64_t rows, Norm with) {
    const MatrixView stream_rows = hidden_.slice_rows(first, rows);
    const bool before = shape_.norm_place == NormPlace::kPre;
    if (!before && buffers_.activation == DType::kF32) return {stream_rows, {}};
    const MatrixView normed =
        dense_matrix(buffers_.normed, buffers_.activation, rows, shape_.hidden);
    if (!before) {
      convert_rows(stream_, {.in = stream_rows, .out = normed});
      return {normed, {}};
    }
    const NormArgs norm = norm_args(stream_rows, with, normed);
    if (!observer_) return {normed, norm};
    normalize(stream_, norm);
    return {normed, {}};
  }

  NormArgs norm_args(const ConstMatrixView& in, Norm with, const MatrixView& out) const {
    return {.kind = shape_.norm,
            .epsilon = shape_.norm_epsilon,
            .in = in,
            .weight = weights_.vector(with.weight),
            .bias = weights_.vector(with.bias),
            .out = out};
  }
  void norm(const MatrixView& in, Norm with, const MatrixView& out) {
    normalize(stream_, norm_args(in, with, out));
  }

  Status add_to_hidden(const MatrixView& own, const MatrixView& hidden, WeightRole weight,
                       WeightRole bias) {
    SPILLWAY_ASSIGN_OR_RETURN(const ConstMatrixView in, join(own));
    const int64_t outputs = shape_.hidden / shape_.ranks;
    observe(weight, in);
    linear(stream_, {.in = in,
                     .weight = weights_.matrix(weight),
                     .bias = weights_.vector(bias),
                     .scale = shape_.residual_scale,
                     .out = hidden.slice_columns(shape_.rank * outputs, outputs),
                     .accumulate = true});
    return share_columns(hidden);
  }

  // The columns of all ranks side by side, in order, of which `own` are this one's.
  Result<ConstMatrixView> join(const MatrixView& own) {
    if (buffers_.ranks == nullptr) return ConstMatrixView(own);
    const MatrixView all =
        dense_matrix(buffers_.joined, own.dtype, own.rows, own.columns * shape_.ranks);
    SPILLWAY_RETURN_IF_ERROR(gather(own));
    // The parts of one row lie side by side already.
    if (own.rows == 1)
      return ConstMatrixView(dense_matrix(buffers_.parts, own.dtype, 1, all.columns));
    for (int64_t rank = 0; rank < shape_.ranks; ++rank) {
      convert_rows(stream_, {.in = part(rank, own),
                             .out = all.slice_columns(rank * own.columns, own.columns)});
    }
    return ConstMatrixView(all);
  }

  // Each rank has its own columns of `rows`, and gets those of the others.
  Status share_columns(const MatrixView& rows) {
    if (buffers_.ranks == nullptr) return {};
    const int64_t columns = rows.columns / shape_.ranks;
    const MatrixView own = rows.slice_columns(shape_.rank * columns, columns);
    if (rows.rows == 1) {
      const size_t bytes = static_cast<size_t>(columns) * sizeof(float);
      return buffers_.ranks->all_gather(stream_, own.data, rows.data, bytes);
    }
    SPILLWAY_RETURN_IF_ERROR(gather(own));
    for (int64_t rank = 0; rank < shape_.ranks; ++rank) {
      if (rank == shape_.rank) continue;
      convert_rows(stream_,
                   {.in = part(rank, own), .out = rows.slice_columns(rank * columns, columns)});
    }
    return {};
  }

  // Rank `rank`'s part of what was gathered, which has the shape of `own`.
  MatrixView part(int64_t rank, const MatrixView& own) const {
    const auto bytes = static_cast<size_t>(own.rows * own.columns) * dtype_bytes(own.dtype);
    return dense_matrix(buffers_.parts + static_cast<size_t>(rank) * bytes, own.dtype, own.rows,
                        own.columns);
  }

  Status gather(const MatrixView& own) {
    MatrixView mine = own;
    if (own.stride != own.columns) {
      mine = part(shape_.rank, own);
      convert_rows(stream_, {.in = own, .out = mine});
    }
    const auto bytes = static_cast<size_t>(own.rows * own.columns) * dtype_bytes(own.dtype);
    return buffers_.ranks->all_gather(stream_, mine.data, buffers_.parts, bytes);
  }

  Stream& stream_;
  const ModelShape& shape_;
  const LayerWeights& weights_;
  const LayerBuffers& buffers_;
  const MatrixView& hidden_;
  const InputObserver& observer_;
};

size_t buffer_bytes(int64_t rows, int64_t columns, DType dtype) {
  return round_up(static_cast<uint64_t>(rows * columns) * dtype_bytes(dtype), 64);
}

}  // namespace

LayerBufferSizes layer_buffer_sizes(const ModelShape& shape, DType activation, int64_t tokens_max) {
  const int64_t chunk = std::min(tokens_max, kLayerChunkRows);
  const WeightSpec qkv = layer_spec(shape, WeightRole::kQkvWeight);
  const WeightSpec up = layer_spec(shape, WeightRole::kMlpUpWeight);
  const int64_t input = std::max(shape.query_width(), shape.mlp) * shape.ranks;
  const bool shared = shape.ranks > 1;
  const size_t joined = shared ? buffer_bytes(chunk, input, activation) : 0;
  const size_t stream = shared ? buffer_bytes(chunk, shape.hidden, DType::kF32) : 0;
  return {buffer_bytes(chunk, shape.hidden, activation),
          buffer_bytes(tokens_max, qkv.rows, DType::kF32),
          buffer_bytes(tokens_max, shape.query_width(), activation),
          buffer_bytes(chunk, up.rows, activation),
          std::max(joined, stream),
          joined};
}

LayerBuffers place_layer_buffers(const LayerBufferSizes& sizes, DType activation,
                                 std::byte* memory) {
  LayerBuffers buffers;
  buffers.activation = activation;
  buffers.normed = memory;
  buffers.qkv = buffers.normed + sizes.normed;
  buffers.attended = buffers.qkv + sizes.qkv;
  buffers.inner = buffers.attended + sizes.attended;
  buffers.parts = buffers.inner + sizes.inner;
  buffers.joined = buffers.parts + sizes.parts;
  return buffers;
}

MatrixView qkv_rows(const ModelShape& shape, const LayerBuffers& buffers, int64_t rows) {
  return dense_matrix(buffers.qkv, DType::kF32, rows, shape.qkv_width());
}
MatrixView attended_rows(const ModelShape& shape, const LayerBuffers& buffers, int64_t rows) {
  return dense_matrix(buffers.attended, buffers.activation, rows, shape.query_width());
}

void begin_decoder_layer(Stream& stream, const ModelShape& shape, const LayerWeights& weights,
                         const LayerBuffers& buffers, const MatrixView& hidden,
                         const ConstMatrixView& rotary, AttentionFeed& feed, const KvLayout& kv,
                         int64_t window, const InputObserver& observer) {
  LayerRun(stream, shape, weights, buffers, hidden, observer).attend(rotary, feed, kv, window);
}

MatrixView keep_rows(Stream& stream, const ModelShape& shape, const LayerBuffers& buffers,
                     const MatrixView& hidden, std::span<const int32_t> rows) {
  // In order, so that no row is overwritten before it has moved.
  const auto move = [&](const MatrixView& matrix) {
    const size_t bytes = static_cast<size_t>(matrix.columns) * dtype_bytes(matrix.dtype);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto to = static_cast<int64_t>(i);
      SPILLWAY_CHECK(rows[i] >= to && rows[i] < matrix.rows);
      if (rows[i] != to) stream.copy(matrix.row(to), matrix.row(rows[i]), bytes);
    }
  };
  move(hidden);
  move(attended_rows(shape, buffers, hidden.rows));
  return hidden.slice_rows(0, static_cast<int64_t>(rows.size()));
}

Status finish_decoder_layer(Stream& stream, const ModelShape& shape, const LayerWeights& weights,
                            const LayerBuffers& buffers, const MatrixView& hidden,
                            const InputObserver& observer) {
  return LayerRun(stream, shape, weights, buffers, hidden, observer).finish();
}

}  // namespace spillway
