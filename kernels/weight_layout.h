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
// multiply-add peak against 79 % when 16 columns are cut out of a 64-wide panel). Matrix units read
// it as well: 16 pairs of inputs of a bf16 panel are a tile. kPanels64 is the layout of older bf16
// files that were made for matrix units. No kernel reads it: such a file is repacked as it loads.
// A contiguous run of rows (a slab) is a multiple of 64 rows in either.
//
// Weights quantised in groups (base/quantized.h) lie in kRows, each row as that says, or in
// kPanels16, C rounded up to a group: a panel is its groups of inputs one after another (q4: 576
// bytes, nine cache lines; q4_1 and q8_1: five and nine):
//
//   float16 scale[16], float16 minimum[16]     of the 16 outputs
//   uint32 word[W][16]                         word[i][r]: inputs F i to F i + F - 1 of output r,
//                                              first in the lowest bits; F codes fill a word
//
// so that one vector load reads F inputs of as many outputs as it has 32-bit lanes, and a shift and
// a mask turn each of them into an integer, in the order in which they are summed. Rows with one
// scale (base/quantized_rows.h) lie in kRows as that says, or in kPanels16 as q8_panels.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/base/format.h"
#include "kernels/base/quantized.h"
#include "kernels/convert_numbers.h"

namespace spillway {

enum class MatrixLayout : uint8_t { kRows, kPanels16, kPanels64 };

std::string_view layout_name(MatrixLayout layout);  // "rows", "panels16", ...
std::optional<MatrixLayout> layout_of_name(std::string_view name);

// The layout that cuBLAS reads.
constexpr MatrixLayout kCudaMatrixLayout = MatrixLayout::kRows;

constexpr int64_t kPanelRowMultiple = 64;
constexpr int64_t kPanelColumnMultiple = 16;

// One group of inputs of a 16-output panel of quantised weights.
template <Format kOf>
struct PanelGroup {
  using Traits = QuantTraits<kOf>;
  uint16_t scale[16];
  uint16_t minimum[16];
  uint32_t words[Traits::kWords][16];
};
static_assert(sizeof(PanelGroup<Format::kQ4>) == 576);
static_assert(sizeof(PanelGroup<Format::kQ4_1>) == 320);
static_assert(sizeof(PanelGroup<Format::kQ8_1>) == 576);

// Whether matrices in `format` may lie in `layout`: only bf16 ones in kPanels64.
bool layout_holds(MatrixLayout layout, Format format);

// Columns of a panel, padding included.
int64_t padded_columns(MatrixLayout layout, Format format, int64_t columns);

// Bytes of `rows` x `columns` in this layout and format, padding included.
// REQUIRES: layout_holds(layout, format).
size_t packed_bytes(MatrixLayout layout, Format format, int64_t rows, int64_t columns);

// Packs row-major `source` ([rows, columns], dense) into `target`, which has packed_bytes(layout,
// format, rows, columns). Converts with round to nearest even and adds to `counts`, or quantises
// and adds the quantisation error to `error`, unless these are null. `hadamard`, of quantised
// matrices alone: rows are multiplied by Hadamard matrices first (input_hadamard.h).
void pack_rows(MatrixLayout layout, Format format, DType source_type, const std::byte* source,
               int64_t rows, int64_t columns, std::byte* target, QuantError* error = nullptr,
               ConversionCounts* counts = nullptr, bool hadamard = false);

// Quantises `rows` rows of row-major `source` into the rows from `at` on of a packed matrix or
// table that was zeroed, and adds the error to `error` unless it is null.
void quantize_rows(MatrixLayout layout, Format format, DType source_type, const std::byte* source,
                   int64_t at, int64_t rows, int64_t columns, std::byte* target,
                   QuantError* error = nullptr, bool hadamard = false);

// Puts codes that are already quantised, group `group` of row `row` of a matrix or table of
// `columns`, into a target that was zeroed. REQUIRES: is_grouped(format); layout_holds(layout,
// format); the codes are those of a whole group, or of the rest of the row.
void put_group(MatrixLayout layout, Format format, int64_t columns, int64_t row, int64_t group,
               std::span<const uint8_t> codes, const GroupScale& scale, std::byte* target);

// Moves a quantised matrix of `rows` x `columns` from one layout into another, codes and scales as
// they are. `target` has packed_bytes(to, format, rows, columns).
void move_codes(Format format, int64_t rows, int64_t columns, MatrixLayout from,
                const std::byte* source, MatrixLayout to, std::byte* target);

// Inverse of pack_rows(): row-major `target` of [rows, columns] in unpacked_type(format), still
// multiplied by Hadamard matrices where it was.
void unpack_rows(MatrixLayout layout, Format format, const std::byte* source, int64_t rows,
                 int64_t columns, std::byte* target);

// Byte offsets of the float16 scale and minimum of group `group` of `row` in a packed matrix or
// table. REQUIRES: is_grouped(format); layout_holds(layout, format).
struct ScaleOffsets {
  size_t scale = 0;
  size_t minimum = 0;
};
ScaleOffsets scale_offsets(MatrixLayout layout, Format format, int64_t columns, int64_t row,
                           int64_t group);

// Byte offset of the float32 scale of `row` in a packed matrix or table of kQ8.
// REQUIRES: layout_holds(layout, kQ8).
size_t row_scale_offset(MatrixLayout layout, int64_t columns, int64_t row);

}  // namespace spillway
