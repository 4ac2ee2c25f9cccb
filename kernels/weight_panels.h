// Panels of plain weights from rows as checkpoints have them and back, 16 bytes at a time: what
// weight_layout.h says of kPanels16 and kPanels64. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"
#include "kernels/convert_numbers.h"
#include "kernels/weight_layout.h"

namespace spillway {

// Outputs of one panel. REQUIRES: not kRows.
int64_t panel_rows(MatrixLayout layout);

// Packs panel_rows(layout) rows of bf16 or f16, dense and one after another, each of
// padded_columns() numbers, into one panel. `rows` and `panel` do not overlap.
void pack_panel(MatrixLayout layout, Format format, int64_t columns, const std::byte* rows,
                std::byte* panel);

// pack_rows() and unpack_rows() (weight_layout.h) of plain formats in panels. All of `target` is
// written, padding included. REQUIRES: neither quantised nor kRows.
void pack_panels(MatrixLayout layout, Format format, DType source_type, const std::byte* source,
                 int64_t rows, int64_t columns, std::byte* target, ConversionCounts* counts);
void unpack_panels(MatrixLayout layout, Format format, const std::byte* source, int64_t rows,
                   int64_t columns, std::byte* target);

}  // namespace spillway
