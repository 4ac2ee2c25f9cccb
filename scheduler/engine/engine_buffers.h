// The engine's working memory other than weights, KV cache and the residual stream: one allocation
// and views into it. Plain values.
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

// Rows whose logits are queued, part by part, before the host waits for them, on a discrete device:
// those of a usual block.
constexpr int64_t kQueuedRows = 4 * kHeadRows;

struct EngineBuffers {
  MatrixView embedded;     // [batch_rows, embedding] if that is not hidden wide
  MatrixView selected;     // [selected_rows, hidden]
  MatrixView normed;       // [kHeadRows, hidden], activation dtype
  MatrixView projected;    // [kHeadRows, embedding], activation dtype
  MatrixView logits;       // [kHeadRows, vocabulary]
  MatrixView logit_parts;  // [ranks * kHeadRows, the most of a rank], where ranks share the head
  int32_t* sampled = nullptr;  // [selected_rows]
  // Buffers of one micro-batch and the next, which share `normed` and `inner`; without `two` both
  // are the same.
  std::array<LayerBuffers, 2> layers;
  uint64_t bytes = 0;
};

// Places the buffers for micro-batches of up to `batch_rows_max` tokens at `memory`, whose size is
// the `bytes` that placing them at null returns. `two`: a second micro-batch may begin a layer
// before the first has finished it.
EngineBuffers place_engine_buffers(const ModelShape& shape, DType activation,
                                   int64_t batch_rows_max, int64_t selected_rows, bool two,
                                   std::byte* memory);

}  // namespace spillway
