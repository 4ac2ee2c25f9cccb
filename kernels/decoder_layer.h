// One decoder layer over one micro-batch, as the ModelShape describes it. The only code that knows
// what a layer is made of; a new family's layer is new fields of ModelShape and branches here.
#pragma once

#include <array>
#include <functional>
#include <span>

#include "kernels/base/model_shape.h"
#include "kernels/base/weights.h"
#include "kernels/ops.h"
#include "kernels/rank_group.h"

namespace spillway {

// Views of one layer's weights by role; the layer is a decoder layer, the embeddings or the head. A
// role that the layer lacks is a matrix without rows, or null.
class LayerWeights {
 public:
  // Matrices and tables.
  WeightMatrix& matrix(WeightRole role) { return matrices_[index(role)]; }
  const WeightMatrix& matrix(WeightRole role) const { return matrices_[index(role)]; }
  // f32.
  const float*& vector(WeightRole role) { return vectors_[index(role)]; }
  const float* vector(WeightRole role) const { return vectors_[index(role)]; }
  // A bias in the activation dtype; null: not rounded in advance.
  const std::byte*& rounded(WeightRole role) { return rounded_[index(role)]; }
  const std::byte* rounded(WeightRole role) const { return rounded_[index(role)]; }

 private:
  static size_t index(WeightRole role) { return static_cast<size_t>(role); }

  std::array<WeightMatrix, kWeightRoles> matrices_;
  std::array<const float*, kWeightRoles> vectors_ = {};
  std::array<const std::byte*, kWeightRoles> rounded_ = {};
};

// Rows per call of the linear layers: bounds the MLP's inner activations, which are four times as
// wide as the residual stream. Attention needs all rows of a prompt at once, so qkv holds all.
constexpr int64_t kLayerChunkRows = 512;

// Working memory of a layer for micro-batches of up to `tokens_max` tokens. Views into memory of
// the engine; one micro-batch at a time.
struct LayerBuffers {
  std::byte* normed = nullptr;    // [kLayerChunkRows, hidden], activation dtype
  std::byte* qkv = nullptr;       // [tokens_max, qkv_width], f32
  std::byte* attended = nullptr;  // [tokens_max, query_width], activation dtype
  std::byte* inner = nullptr;     // [kLayerChunkRows, outputs of mlp_up], activation dtype
  // Of a rank that shares its layers with others: what these gather, rank by rank, and the inputs
  // of which each rank has made its part, side by side, activation dtype.
  std::byte* parts = nullptr;   // [ranks][kLayerChunkRows, the widest part]
  std::byte* joined = nullptr;  // [kLayerChunkRows, the widest input]
  DType activation = DType::kF32;
  RankGroup* ranks = nullptr;  // Null: the rank has all of every layer.
};

// Bytes of the buffers, each rounded up to 64, in the order above.
struct LayerBufferSizes {
  size_t normed, qkv, attended, inner, parts, joined;
  size_t total() const { return normed + qkv + attended + inner + parts + joined; }
};
LayerBufferSizes layer_buffer_sizes(const ModelShape& shape, DType activation, int64_t tokens_max);
LayerBuffers place_layer_buffers(const LayerBufferSizes& sizes, DType activation,
                                 std::byte* memory);

// Yields a micro-batch's attention items as their KV caches arrive in memory, so that attention
// over the caches that are resident overlaps the transfers of the others.
class AttentionFeed {
 public:
  virtual ~AttentionFeed() = default;
  // Returns at least one item whose cache the stream may use; the work for the items returned
  // before is queued. Empty: no more items. Rows in no item keep undefined results, which no other
  // row reads.
  virtual std::span<const AttentionItem> next() = 0;
};

// Is told what goes into each matrix product of a layer, in memory, before it runs: where a stream
// runs its work inside the call (on a CPU). Calibration looks at it (convert --calibrate). May be
// empty.
using InputObserver = std::function<void(WeightRole weight, const ConstMatrixView& in)>;

// begin_decoder_layer() and finish_decoder_layer() turn hidden (f32 [T, hidden]) into the layer's
// output, in place. Between the two calls another stream may read rows of qkv and write rows of
// attended, for items that are not in `feed`; and other micro-batches may run, with a qkv and an
// attended of their own.
//
// begin_decoder_layer() computes queries, keys and values, and the attention of the items of
// `feed`, which lie in the rows of `hidden`; their caches gain the new rows. `rotary` are the rows'
// cosines and sines (RotateArgs::table), without columns in a layer that does not rotate. `window`:
// AttentionArgs::window. REQUIRES: T <= tokens_max of the buffers.
void begin_decoder_layer(Stream& stream, const ModelShape& shape, const LayerWeights& weights,
                         const LayerBuffers& buffers, const MatrixView& hidden,
                         const ConstMatrixView& rotary, AttentionFeed& feed, const KvLayout& kv,
                         int64_t window, const InputObserver& observer = {});
// Called before finish_decoder_layer() where only some rows' output is needed: moves these rows of
// hidden and of attended to the front and returns them as a view of hidden. `rows` are ascending.
MatrixView keep_rows(Stream& stream, const ModelShape& shape, const LayerBuffers& buffers,
                     const MatrixView& hidden, std::span<const int32_t> rows);
// Runs the rest of the layer, from the attention output projection on. Ranks that share the layer
// (rank_shape.h) give each other four things: what they have attended, the residual stream with
// that added to it, the MLP's inner activations, and the residual stream again. Errors are those of
// RankGroup; a rank alone has none.
Status finish_decoder_layer(Stream& stream, const ModelShape& shape, const LayerWeights& weights,
                            const LayerBuffers& buffers, const MatrixView& hidden,
                            const InputObserver& observer = {});

// Views of the qkv and attended buffers of a micro-batch of `rows` tokens.
MatrixView qkv_rows(const ModelShape& shape, const LayerBuffers& buffers, int64_t rows);
MatrixView attended_rows(const ModelShape& shape, const LayerBuffers& buffers, int64_t rows);

}  // namespace spillway
