// One decoder layer over one micro-batch, as the ModelShape describes it. The only code that knows
// what a layer is made of; a new family's layer is new fields of ModelShape and branches here.
#pragma once

#include <span>

#include "kernels/base/model_shape.h"
#include "kernels/ops.h"

namespace spillway {

// The weights of one layer, views. Vectors are f32 or null (no such weight in this model).
struct LayerWeights {
  const float* attention_norm_weight = nullptr;
  const float* attention_norm_bias = nullptr;
  WeightMatrix qkv;
  const float* qkv_bias = nullptr;
  WeightMatrix attention_out;
  const float* attention_out_bias = nullptr;
  const float* mlp_norm_weight = nullptr;
  const float* mlp_norm_bias = nullptr;
  WeightMatrix mlp_up;
  const float* mlp_up_bias = nullptr;
  const std::byte* mlp_up_bias_rounded = nullptr;  // In the activation dtype; null: nobody did
  WeightMatrix mlp_down;
  const float* mlp_down_bias = nullptr;
};

// Rows that the linear layers take at once: bounds the MLP's inner activations, which are four
// times as wide as the stream. Attention needs all of a prompt's rows at once, so qkv holds all.
constexpr int64_t kLayerChunkRows = 512;

// Working memory of a layer for micro-batches of up to `tokens_max` tokens. Views into memory of
// the engine; one micro-batch at a time.
struct LayerBuffers {
  std::byte* normed = nullptr;    // [kLayerChunkRows, hidden], activation dtype
  std::byte* qkv = nullptr;       // [tokens_max, qkv_width], f32
  std::byte* attended = nullptr;  // [tokens_max, query_width], activation dtype
  std::byte* inner = nullptr;     // [kLayerChunkRows, mlp], activation dtype
  DType activation = DType::kF32;
};

// Bytes of the four buffers, each rounded up to 64, in the order above.
struct LayerBufferSizes {
  size_t normed, qkv, attended, inner;
  size_t total() const { return normed + qkv + attended + inner; }
};
LayerBufferSizes layer_buffer_sizes(const ModelShape& shape, DType activation, int64_t tokens_max);
LayerBuffers place_layer_buffers(const LayerBufferSizes& sizes, DType activation,
                                 std::byte* memory);

// Hands out a micro-batch's attention items as their caches come into memory, so that attention to
// those that are there overlaps the transfers of the others.
class AttentionFeed {
 public:
  virtual ~AttentionFeed() = default;
  // Items whose caches the stream may use, at least one; the work for those handed out before is
  // queued. Empty: no more. Rows in no item keep undefined results, which no other row sees.
  virtual std::span<const AttentionItem> next() = 0;
};

// hidden (f32 [T, hidden]) -> the layer's output, in place, in two halves. Between them another
// stream may read rows of qkv and write rows of attended, for items that are not in `feed`; and
// other micro-batches may run, with a qkv and an attended of their own.
//
// The first: queries, keys and values, and attention of the items of `feed`, which lie in the rows
// of `hidden`; their caches gain the new rows. REQUIRES: T <= tokens_max of the buffers; learned
// positions, plain MLP.
void begin_decoder_layer(Stream& stream, const ModelShape& shape, const LayerWeights& weights,
                         const LayerBuffers& buffers, const MatrixView& hidden, AttentionFeed& feed,
                         const KvLayout& kv);
// Before the second, where only some rows' output is wanted: moves these rows of hidden and of
// attended to the front and returns them, a view of hidden. `rows` are ascending.
MatrixView keep_rows(Stream& stream, const ModelShape& shape, const LayerBuffers& buffers,
                     const MatrixView& hidden, std::span<const int32_t> rows);
// The second: all the rest.
void finish_decoder_layer(Stream& stream, const ModelShape& shape, const LayerWeights& weights,
                          const LayerBuffers& buffers, const MatrixView& hidden);

// What lies in the buffers of a micro-batch of `rows` tokens.
MatrixView qkv_rows(const ModelShape& shape, const LayerBuffers& buffers, int64_t rows);
MatrixView attended_rows(const ModelShape& shape, const LayerBuffers& buffers, int64_t rows);

}  // namespace spillway
