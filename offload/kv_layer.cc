#include "offload/kv_layer.h"

#include <algorithm>

#include "kernels/kv_state.h"

namespace spillway {

KvLayer kv_layer(const KvLayout& layout, int64_t window, int64_t rows, const KvBudget& budget,
                 const KvChunks& chunks) {
  KvLayer layer;
  layer.budget = budget.within(window, rows, chunks.prompt > 0 ? chunks.most : 0);
  const KvStateLayout state{layout.heads, layer.budget};
  layer.state_bytes = chunks.prompt > 0 ? state.chunked_bytes(chunks.prompt) : state.bytes();
  const uint64_t row_bytes = layout.sequence_bytes(layer.budget.chunked_slots(chunks.prompt, rows));
  layer.memory_bytes = layer.state_bytes + row_bytes;
  layer.disk_bytes = layer.disk_state_bytes() + round_up(row_bytes, kIoAlignment);
  return layer;
}

uint64_t KvLayer::staged_bytes() const {
  if (!in_blocks()) return disk_bytes;
  // Of a layer in several runs the largest has half of it at most.
  return disk_bytes + std::min(round_up(disk_bytes / 2, kIoAlignment), kKvDiskRunBytesMax);
}

KvLayersBytes kv_layers_bytes(const ModelShape& shape, Format format, int64_t rows,
                              const KvBudget& budget, const KvChunks& chunks,
                              const LayerRange& range) {
  int64_t with_window = 0;
  for (int64_t layer = range.first; layer < range.end(); ++layer) {
    if (shape.window(layer) > 0) ++with_window;
  }
  KvLayersBytes bytes;
  const auto add = [&](int64_t layers, int64_t window) {
    if (layers == 0) return;
    const KvLayer one = kv_layer(kv_layout(shape, format), window, rows, budget, chunks);
    bytes.memory += static_cast<uint64_t>(layers) * one.memory_bytes;
    bytes.disk += static_cast<uint64_t>(layers) * one.disk_bytes;
    bytes.largest_on_disk = std::max(bytes.largest_on_disk, one.disk_bytes);
    bytes.largest_staged = std::max(bytes.largest_staged, one.staged_bytes());
  };
  add(range.count - with_window, 0);
  add(with_window, shape.sliding_window);
  return bytes;
}

}  // namespace spillway
