// How the numbers of a weight matrix lie in memory, and packing into it.
//
// A matrix W is [rows, columns]: y = x W^T, rows are outputs. kRows keeps it row-major, input
// contiguous, as checkpoints have it. kPanels cuts the rows into panels of 64 outputs; inside a
// panel the inputs go by, each with its 64 outputs side by side:
//
//   kPanels, f32         element (r, c) at  (r/64) * C * 64 + c * 64 + r%64
//   kPanels, bf16, f16   pairs of inputs    (r/64) * C * 64 + (c/2) * 128 + (r%64) * 2 + c%2
//
// with C = columns rounded up to 32, the padding zero. This is oneDNN's BA16a64b (f32) and
// BA16a64b2a (bf16) of a [columns, rows] matrix, and what the AVX2 kernels read at full speed, so
// one file serves every CPU. A contiguous run of rows (a slab) is a multiple of 64 of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/base/dtype.h"

namespace spillway {

enum class MatrixLayout : uint8_t { kRows, kPanels };

std::string_view layout_name(MatrixLayout layout);  // "rows", "panels64".
std::optional<MatrixLayout> layout_of_name(std::string_view name);

constexpr int64_t kPanelRows = 64;
constexpr int64_t kPanelColumnMultiple = 32;

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
