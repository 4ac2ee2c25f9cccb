// Memory layout of the keys and values of one sequence in one layer.
//
// Rows (cached positions) come in blocks of 16; a block holds [key, value][head][16 rows][head
// size]; quantised rows are quantised one by one when they are stored. A head's rows of a block are
// one contiguous run, and full blocks never change under the full rule, so a tier below memory
// stores whole blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"
#include "kernels/base/model_shape.h"

namespace spillway {

constexpr int64_t kKvBlockRows = 16;

// KV blocks that so many rows take.
constexpr int64_t kv_blocks(int64_t rows) {
  return (rows + kKvBlockRows - 1) / kKvBlockRows;
}

// Where the KV blocks of one sequence in one layer lie: one behind another from `first` on, or each
// where a block table has its address (PagedAttention, Kwon et al. 2023, arXiv 2309.06180). A view,
// on devices, too; neither member: nowhere.
struct KvBlocks {
  std::byte* first = nullptr;
  std::byte* const* table = nullptr;  // [blocks]; null: they lie in one piece.

  constexpr KvBlocks() = default;
  constexpr KvBlocks(std::byte* piece) : first(piece) {}  // NOLINT: a piece of memory is one
  constexpr explicit KvBlocks(std::byte* const* blocks) : table(blocks) {}

  // The address of block `index`, each of which has so many bytes.
  constexpr std::byte* block(int64_t index, size_t block_bytes) const {
    return table == nullptr ? first + static_cast<size_t>(index) * block_bytes : table[index];
  }
  // Those from block `index` on.
  constexpr KvBlocks from(int64_t index, size_t block_bytes) const {
    return table == nullptr ? KvBlocks(block(index, block_bytes)) : KvBlocks(table + index);
  }
};

struct KvLayout {
  int64_t heads = 0;  // KV heads
  int64_t head_size = 0;
  Format format = Format::kF32;
  int64_t first_head = 0;  // The model's number of the first: of a rank that has only some

  size_t row_bytes() const { return format_row_bytes(format, head_size); }  // One head's
  size_t run_bytes() const { return row_bytes() * static_cast<size_t>(kKvBlockRows); }
  size_t block_bytes() const { return run_bytes() * static_cast<size_t>(2 * heads); }

  // Bytes of one sequence in one layer, whole blocks.
  size_t sequence_bytes(int64_t rows) const {
    return static_cast<size_t>(kv_blocks(rows)) * block_bytes();
  }
  // Byte offset of a head's run of keys (values: + heads * run_bytes()) in block `block`.
  size_t run_offset(int64_t block, int64_t head) const {
    return static_cast<size_t>(block) * block_bytes() + static_cast<size_t>(head) * run_bytes();
  }
  size_t value_offset() const { return static_cast<size_t>(heads) * run_bytes(); }
};

// Default format of the KV cache. Quantised weights say nothing about the cache; float16 keeps 11
// bits of what attention computes.
inline Format default_kv_format(Format weights) {
  return is_quantized(weights) ? Format::kF16 : weights;
}

inline KvLayout kv_layout(const ModelShape& shape, Format format) {
  return {shape.kv_heads, shape.head_size, format, shape.rank * shape.kv_heads};
}

}  // namespace spillway
