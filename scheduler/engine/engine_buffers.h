// The engine's working memory besides weights, KV cache and the residual stream: one allocation,
// views into it. Plain values.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/model_shape.h"
#include "kernels/decoder_layer.h"
#include "kernels/tensor.h"

namespace spillway {

// Rows of logits computed at once: enough for the head's weights to be read once for a usual block
// of decoding sequences, and 13 MB for OPT's vocabulary.
constexpr int64_t kHeadRows = 64;

struct EngineBuffers {
  MatrixView embedded;       // [batch_rows, embedding] when that is another width than hidden
  MatrixView selected;       // [kHeadRows, hidden]
  MatrixView normed;         // [kHeadRows, hidden], activation dtype
  MatrixView projected;      // [kHeadRows, embedding], activation dtype
  MatrixView logits;         // [kHeadRows, vocabulary]
  int32_t* drawn = nullptr;  // [kHeadRows]
  // Of one micro-batch and the next, which share `normed` and `inner`; without `two` the same.
  std::array<LayerBuffers, 2> layers;
  uint64_t bytes = 0;
};

// Places the buffers for micro-batches of up to `batch_rows_max` tokens at `memory`, which has the
// `bytes` that placing them at null returns. `two`: a second micro-batch may begin a layer before
// the first has finished it.
EngineBuffers place_engine_buffers(const ModelShape& shape, DType activation,
                                   int64_t batch_rows_max, bool two, std::byte* memory);

}  // namespace spillway
