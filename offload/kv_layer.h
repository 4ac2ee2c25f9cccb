// What a layer of a sequence takes of the KV cache: in memory, on disk, and on its way between
// them. Pure functions of lengths and budgets.
#pragma once

#include <cstdint>

#include "kernels/base/checked_math.h"
#include "kernels/base/kv_budget.h"
#include "kernels/base/layer_range.h"
#include "kernels/base/model_shape.h"
#include "kernels/kv_layout.h"
#include "offload/io/io.h"

namespace spillway {

// Longer runs of KV blocks on disk are cut: the disk reads the parts of a layer at once, and a
// staging ring loses less at its end.
constexpr uint64_t kKvDiskRunBytesMax = uint64_t{2} << 20;

// The chunks of a prompt that does not go through at once: its length, 0 if it does, and the most
// tokens of a chunk (0: any number).
struct KvChunks {
  int64_t prompt = 0, most = 0;
  KvChunks(int64_t prompt_tokens = 0, int64_t most_tokens = 0)  // NOLINT: a length says that
      : prompt(prompt_tokens), most(most_tokens) {}
};

// What one layer of a sequence takes of the cache. Layers with a sliding window keep other rows
// than those without, so that a sequence may have layers of two sizes.
struct KvLayer {
  KvBudget budget;           // Which positions are kept
  uint64_t state_bytes = 0;  // In front of the rows, in memory
  uint64_t memory_bytes = 0, disk_bytes = 0;
  // What staging memory must have for it: its runs one behind another in a ring, whose end none of
  // them goes around.
  uint64_t staged_bytes() const;
  // Whether its blocks may lie apart: those of a layer without state, which keeps every row.
  bool in_blocks() const { return budget.full() && state_bytes == 0; }
  uint64_t disk_state_bytes() const { return round_up(state_bytes, kIoAlignment); }
};
// Of a layer with a window (ModelShape::window(); 0: none), where the sequence may have `rows`
// positions and keeps what `budget` says.
KvLayer kv_layer(const KvLayout& layout, int64_t window, int64_t rows, const KvBudget& budget,
                 const KvChunks& chunks);

// Bytes over some layers of a model, and of the largest of them.
struct KvLayersBytes {
  uint64_t memory = 0, disk = 0;
  uint64_t largest_on_disk = 0, largest_staged = 0;
};
KvLayersBytes kv_layers_bytes(const ModelShape& shape, Format format, int64_t rows,
                              const KvBudget& budget, const KvChunks& chunks,
                              const LayerRange& layers);

}  // namespace spillway
