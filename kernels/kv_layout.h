// Memory layout of the keys and values of one sequence in one layer.
//
// Rows (cached positions) come in blocks of 16; a block holds [key, value][head][16 rows][head
// size]; 4-bit rows are quantised one by one when they are stored. A head's rows of a block are one
// contiguous run, and full blocks never change under the full rule, so a tier below memory stores
// whole blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"
#include "kernels/base/model_shape.h"

namespace spillway {

constexpr int64_t kKvBlockRows = 16;

struct KvLayout {
  int64_t heads = 0;  // KV heads
  int64_t head_size = 0;
  Format format = Format::kF32;

  size_t row_bytes() const { return format_row_bytes(format, head_size); }  // One head's
  size_t run_bytes() const { return row_bytes() * static_cast<size_t>(kKvBlockRows); }
  size_t block_bytes() const { return run_bytes() * static_cast<size_t>(2 * heads); }

  // Bytes of one sequence in one layer, whole blocks.
  size_t sequence_bytes(int64_t rows) const {
    return static_cast<size_t>((rows + kKvBlockRows - 1) / kKvBlockRows) * block_bytes();
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
  return {shape.kv_heads, shape.head_size, format};
}

}  // namespace spillway
