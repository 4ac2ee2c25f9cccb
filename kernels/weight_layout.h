// How the numbers of a weight matrix lie in memory, and packing into it.
//
// A matrix W is [rows, columns]: y = x W^T, rows are outputs. kRows keeps it row-major, input
// contiguous, as checkpoints have it. The panel layouts cut the rows into panels of P outputs;
// inside a panel the inputs go by, each with its P outputs side by side:
//
//   f32, f16   element (r, c) at  (r/P) * C * P + c * P + r%P
//   bf16       pairs of inputs    (r/P) * C * P + (c/2) * 2P + (r%P) * 2 + c%2
//
// with C = columns rounded up to 16 (bf16: 32), the padding zero, and rows padded to 64. kPanels16
// is what our own kernels read: one panel is a contiguous stream (measured on Zen 3: 87 % of the
// multiply-add peak against 79 % when 16 columns are cut out of a 64-wide panel). kPanels64 is
// oneDNN's BA16a64b (f32) and BA16a64b2a (bf16) of a [columns, rows] matrix, for machines with
// AVX-512. A contiguous run of rows (a slab) is a multiple of 64 rows in either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/base/dtype.h"

namespace spillway {

enum class MatrixLayout : uint8_t { kRows, kPanels16, kPanels64 };

std::string_view layout_name(MatrixLayout layout);  // "rows", "panels16", ...
std::optional<MatrixLayout> layout_of_name(std::string_view name);

constexpr int64_t kPanelRowMultiple = 64;
constexpr int64_t kPanelColumnMultiple = 16;

// Columns with their padding: what a panel holds.
int64_t padded_columns(MatrixLayout layout, DType format, int64_t columns);

// Bytes of `rows` x `columns` in this layout and format, padding included.
// REQUIRES: format is kF32, kBF16 or kF16.
size_t packed_bytes(MatrixLayout layout, DType format, int64_t rows, int64_t columns);

// Packs row-major `source` ([rows, columns], dense, any of f32/bf16/f16) into `target`, which has
// packed_bytes(layout, format, rows, columns). Converts with round to nearest even.
void pack_rows(MatrixLayout layout, DType format, DType source_format, const std::byte* source,
               int64_t rows, int64_t columns, std::byte* target);

// The inverse: row-major `target` of [rows, columns] in `format`.
void unpack_rows(MatrixLayout layout, DType format, const std::byte* source, int64_t rows,
                 int64_t columns, std::byte* target);

}  // namespace spillway
