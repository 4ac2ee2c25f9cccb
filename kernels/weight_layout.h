// Memory layouts of weight matrices, and packing into them.
//
// A matrix W is [rows, columns]: y = x W^T, rows are outputs. kRows keeps it row-major, input
// contiguous, as checkpoints have it. The panel layouts cut the rows into panels of P outputs;
// inside a panel the inputs follow one another, each with its P outputs side by side:
//
//   f32, f16   element (r, c) at  (r/P) * C * P + c * P + r%P
//   bf16       pairs of inputs    (r/P) * C * P + (c/2) * 2P + (r%P) * 2 + c%2
//
// with C = columns rounded up to 16 (bf16: 32), the padding zero, and rows padded to 64. kPanels16
// is what our own kernels read: one panel is a contiguous stream (measured on Zen 3: 87 % of the
// multiply-add peak against 79 % when 16 columns are cut out of a 64-wide panel). kPanels64 is
// oneDNN's BA16a64b (f32) and BA16a64b2a (bf16) of a [columns, rows] matrix, for CPUs with matrix
// units. A contiguous run of rows (a slab) is a multiple of 64 rows in either.
//
// 4-bit weights (base/q4.h) lie in kRows, each row as q4.h says, or in kPanels16, C rounded up to
// 64: a panel is its groups of 64 inputs one after another, each of 576 bytes (nine cache lines):
//
//   float16 scale[16], float16 minimum[16]     of the 16 outputs
//   uint32 word[8][16]                         word[i][r]: inputs 8 i to 8 i + 7 of output r, the
//                                              first in the lowest nibble
//
// so that one vector load reads eight inputs of as many outputs as it has 32-bit lanes, and a shift
// and a mask turn each of them into an integer, in the order in which they are summed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/base/format.h"
#include "kernels/base/q4.h"

namespace spillway {

enum class MatrixLayout : uint8_t { kRows, kPanels16, kPanels64 };

std::string_view layout_name(MatrixLayout layout);  // "rows", "panels16", ...
std::optional<MatrixLayout> layout_of_name(std::string_view name);

// The layout that cuBLAS reads.
constexpr MatrixLayout kCudaMatrixLayout = MatrixLayout::kRows;

constexpr int64_t kPanelRowMultiple = 64;
constexpr int64_t kPanelColumnMultiple = 16;

// One group of 64 inputs of a 16-output panel of 4-bit weights.
struct Q4PanelGroup {
  uint16_t scale[16];
  uint16_t minimum[16];
  uint32_t words[kQ4Group / kQ4NibblesPerWord][16];
};
static_assert(sizeof(Q4PanelGroup) == 576);

// Whether matrices in `format` may lie in `layout`: quantised ones have no kPanels64.
bool layout_holds(MatrixLayout layout, Format format);

// Columns of a panel, padding included.
int64_t padded_columns(MatrixLayout layout, Format format, int64_t columns);

// Bytes of `rows` x `columns` in this layout and format, padding included.
// REQUIRES: layout_holds(layout, format).
size_t packed_bytes(MatrixLayout layout, Format format, int64_t rows, int64_t columns);

// Packs row-major `source` ([rows, columns], dense) into `target`, which has packed_bytes(layout,
// format, rows, columns). Converts with round to nearest even, or quantises and adds the
// quantisation error to `error` unless it is null.
void pack_rows(MatrixLayout layout, Format format, DType source_type, const std::byte* source,
               int64_t rows, int64_t columns, std::byte* target, QuantError* error = nullptr);

// Inverse of pack_rows(): row-major `target` of [rows, columns] in unpacked_type(format).
void unpack_rows(MatrixLayout layout, Format format, const std::byte* source, int64_t rows,
                 int64_t columns, std::byte* target);

// Byte offsets of the float16 scale and minimum of group `group` of `row` in a packed matrix or
// table of a quantised format. REQUIRES: layout_holds(layout, format).
struct ScaleOffsets {
  size_t scale = 0;
  size_t minimum = 0;
};
ScaleOffsets scale_offsets(MatrixLayout layout, Format format, int64_t columns, int64_t row,
                           int64_t group);

}  // namespace spillway
