#include <algorithm>

#include "kernels/base/checked_math.h"
#include "kernels/base/linear_shapes.h"
#include "kernels/base/processors.h"
#include "kernels/cpu/attention_parts.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu_scratch.h"

namespace spillway {

namespace {

// A pass of a product packs these bytes of rows, or of wider rows kGemmRowsMax, in float32 at most.
static_assert(cpu::kPackedBytesMax >= cpu::kSpreadPartsBytesMax);
constexpr uint64_t kPackedRows = cpu::kGemmRowsMax;
// A strip of rows that are normed, or multiplied by Hadamard matrices, and one in float32
// (linear.cc).
constexpr uint64_t kPreparedRows = cpu::kStripRowsMax + 1;

}  // namespace

uint64_t cpu_scratch_bytes(const ModelShape& shape, int64_t threads, int64_t prompt_tokens) {
  if (threads == 0) threads = usable_cores();
  cpu::HeadView view;
  view.rows = shape.positions;
  view.head_size = shape.head_size;
  // A prompt's scores, unless it goes through in chunks.
  const uint64_t sums = round_up(static_cast<uint64_t>(prompt_tokens), 64) * sizeof(float);
  uint64_t attention = 0;
  for (const int64_t keys :
       {prompt_tokens, std::min(prompt_tokens, cpu::prompt_keys_at_once(shape.head_size))}) {
    attention =
        std::max<uint64_t>(attention, cpu::prompt_scratch_bytes(shape.head_size, keys, true));
  }
  attention += sums;
  // An unlikely budget needs most to move rows: one that keeps all but one of them.
  const KvBudget most{1, prompt_tokens, true};
  const size_t row_bytes = format_row_bytes(Format::kF32, shape.head_size);
  attention = std::max<uint64_t>(attention, cpu::keep_scratch_bytes(most, row_bytes));
  for (const Format format : kFormats) {  // Rows of some formats are expanded.
    view.kv_format = format;
    const int64_t heads = std::min(cpu::step_heads_max(view), shape.heads);
    const size_t sums_bytes = cpu::part_sums_bytes(shape.head_size, heads);
    attention = std::max<uint64_t>(attention, cpu::step_scratch_bytes(view, heads) + sums_bytes);
  }
  uint64_t widest = 0, expanded = 0;
  for (const LinearShape& linear : linear_shapes(shape)) {
    widest = std::max(widest, static_cast<uint64_t>(linear.inputs));
    // The halves of a gated MLP's first one are expanded side by side.
    const bool gated = linear.role == WeightRole::kMlpUpWeight && shape.mlp_kind == MlpKind::kGated;
    expanded =
        std::max<uint64_t>(expanded, (gated ? 2 : 1) * cpu::int8_scratch_bytes_max(linear.inputs));
    const auto inputs = round_up(static_cast<uint64_t>(linear.inputs), 64);
    expanded = std::max<uint64_t>(expanded, kPreparedRows * inputs * sizeof(float));
  }
  return static_cast<uint64_t>(threads) * round_up(std::max(attention, expanded), 4096) +
         std::max<uint64_t>(cpu::kPackedBytesMax,
                            kPackedRows * round_up(widest, 64) * sizeof(float));
}

}  // namespace spillway
