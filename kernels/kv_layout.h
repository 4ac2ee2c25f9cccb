// How the keys and values of one sequence and layer lie in memory.
//
// Rows (cached positions) come in blocks of 16; a block holds [key, value][head][16 rows][head
// size]. A head's rows of a block are one contiguous run, and full blocks never change under the
// full rule, so a tier below memory sees whole blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/model_shape.h"

namespace spillway {

constexpr int64_t kKvBlockRows = 16;

struct KvLayout {
  int64_t heads = 0;  // KV heads
  int64_t head_size = 0;
  DType dtype = DType::kF32;  // kF32, kBF16 or kF16

  size_t row_bytes() const { return static_cast<size_t>(head_size) * dtype_bytes(dtype); }
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

inline KvLayout kv_layout(const ModelShape& shape, DType dtype) {
  return {shape.kv_heads, shape.head_size, dtype};
}

}  // namespace spillway
