// Panels of 16-bit weights from rows as checkpoints have them, fast: what pack_rows()
// (weight_layout.h) does number by number, this does 16 bytes at a time. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"
#include "kernels/weight_layout.h"

namespace spillway {

// Outputs of one panel. REQUIRES: not kRows.
int64_t panel_rows(MatrixLayout layout);

// Packs panel_rows(layout) rows of bf16 or f16, dense and one after another, each of
// padded_columns() numbers, into one panel. `rows` and `panel` do not overlap.
void pack_panel(MatrixLayout layout, Format format, int64_t columns, const std::byte* rows,
                std::byte* panel);

}  // namespace spillway
