#include "scheduler/engine/rotary_table.h"

#include "kernels/base/checked_math.h"
#include "kernels/base/rotary.h"

namespace spillway {

uint64_t RotaryTable::bytes(const ModelShape& shape, int64_t sweep_tokens_max) {
  const auto numbers = static_cast<uint64_t>(sweep_tokens_max * shape.rotary.dims);
  return round_up(numbers * sizeof(float), 256);
}

RotaryTable::RotaryTable(Stream& stream, const ModelShape& shape, std::byte* memory, Buffer host)
    : stream_(stream), shape_(shape), memory_(memory), host_(std::move(host)) {}

void RotaryTable::fill(std::span<const SweepItem> items) {
  const Rotary& rotary = shape_.rotary;
  if (rotary.dims == 0) return;
  const auto columns = static_cast<size_t>(rotary.dims);
  std::byte* const start = host_.bytes() > 0 ? host_.data() : memory_;
  auto* row = reinterpret_cast<float*>(start);
  for (const SweepItem& item : items) {
    const auto tokens = static_cast<int64_t>(item.tokens.size());
    // Dynamic scaling follows a sequence's length; a sequence that may outgrow LongRoPE's first
    // frequencies has the second ones from the start, so that its cached keys agree with its
    // queries.
    const bool long_rope = !rotary.long_frequencies.empty();
    const auto frequencies = [&](int64_t now) {
      return frequencies_at(rotary, long_rope ? item.kv->rows : now, &scratch_);
    };
    auto found = frequencies(item.is_step() ? item.position + 1 : item.prompt_tokens());
    for (int64_t i = 0; i < tokens; ++i, row += columns) {
      // Of a draft each token has the length that it would have alone.
      if (item.is_step() && i > 0) found = frequencies(item.position + i + 1);
      fill_rotary_row(found, rotary.scale, item.position + i, {row, columns});
    }
  }
  const auto bytes = static_cast<size_t>(reinterpret_cast<std::byte*>(row) - start);
  if (start != memory_ && bytes > 0) stream_.copy(memory_, start, bytes);
}

ConstMatrixView RotaryTable::rows(int64_t layer, int64_t first, int64_t rows) const {
  if (!shape_.rotates(layer)) return {.data = memory_, .rows = rows};
  const int64_t columns = shape_.rotary.dims;
  return dense_matrix(memory_ + static_cast<size_t>(first * columns) * sizeof(float), DType::kF32,
                      rows, columns);
}

}  // namespace spillway
