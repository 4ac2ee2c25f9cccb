#include "scheduler/engine/engine_buffers.h"

#include "kernels/base/checked_math.h"
#include "kernels/base/rank_shape.h"

namespace spillway {

namespace {

// Places views one after the other in one allocation; with no memory it only counts.
class Placer {
 public:
  explicit Placer(std::byte* memory) : memory_(memory) {}
  MatrixView matrix(DType dtype, int64_t rows, int64_t columns) {
    std::byte* data = take(static_cast<uint64_t>(rows * columns) * dtype_bytes(dtype));
    return dense_matrix(data, dtype, rows, columns);
  }
  std::byte* take(uint64_t bytes) {
    std::byte* data = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += round_up(bytes, 64);
    return data;
  }
  uint64_t used() const { return used_; }

 private:
  std::byte* memory_;
  uint64_t used_ = 0;
};

}  // namespace

EngineBuffers place_engine_buffers(const ModelShape& shape, DType activation,
                                   int64_t batch_rows_max, int64_t selected_rows, bool two,
                                   std::byte* memory) {
  Placer placer(memory);
  const bool narrow = shape.embedding != shape.hidden;
  const LayerBufferSizes sizes = layer_buffer_sizes(shape, activation, batch_rows_max);
  EngineBuffers buffers;
  // f32; project_in's input is converted from it like any layer input.
  buffers.embedded =
      placer.matrix(DType::kF32, narrow && shape.rank == 0 ? batch_rows_max : 0, shape.embedding);
  // Of several ranks the first alone embeds and has logits.
  const int64_t logits_rows = shape.rank == 0 ? kHeadRows : 0;
  if (shape.rank > 0) selected_rows = 0;
  buffers.selected = placer.matrix(DType::kF32, selected_rows, shape.hidden);
  buffers.normed = placer.matrix(activation, kHeadRows, shape.hidden);
  buffers.projected = placer.matrix(activation, narrow ? kHeadRows : 0, shape.embedding);
  buffers.logits = placer.matrix(DType::kF32, logits_rows, shape.vocabulary);
  buffers.logit_parts = placer.matrix(DType::kF32, shape.ranks > 1 ? shape.ranks * kHeadRows : 0,
                                      head_rows(shape.vocabulary, 0, shape.ranks).count);
  buffers.sampled = reinterpret_cast<int32_t*>(
      placer.take(static_cast<uint64_t>(selected_rows) * sizeof(int32_t)));
  buffers.layers.fill(place_layer_buffers(sizes, activation, placer.take(sizes.total())));
  if (two) {
    buffers.layers[1].qkv = placer.take(sizes.qkv);
    buffers.layers[1].attended = placer.take(sizes.attended);
  }
  buffers.bytes = placer.used();
  return buffers;
}

}  // namespace spillway
