#include "kernels/weight_layout.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/checked_math.h"

namespace spillway {

namespace {

int64_t padded_columns(int64_t columns) {
  return static_cast<int64_t>(round_up(static_cast<uint64_t>(columns), kPanelColumnMultiple));
}

// Element index of (row, column) inside the packed matrix.
int64_t panel_index(DType format, int64_t row, int64_t column, int64_t column_count) {
  const int64_t panel = row / kPanelRows * column_count * kPanelRows;
  const int64_t r = row % kPanelRows;
  if (format == DType::kF32) return panel + column * kPanelRows + r;
  return panel + column / 2 * (2 * kPanelRows) + r * 2 + column % 2;
}

}  // namespace

std::string_view layout_name(MatrixLayout layout) {
  return layout == MatrixLayout::kRows ? "rows" : "panels64";
}

std::optional<MatrixLayout> layout_of_name(std::string_view name) {
  for (MatrixLayout layout : {MatrixLayout::kRows, MatrixLayout::kPanels}) {
    if (layout_name(layout) == name) return layout;
  }
  return std::nullopt;
}

size_t packed_bytes(MatrixLayout layout, DType format, int64_t rows, int64_t columns) {
  const size_t element = dtype_bytes(format);
  if (layout == MatrixLayout::kRows) return static_cast<size_t>(rows * columns) * element;
  return round_up(static_cast<uint64_t>(rows), kPanelRows) *
         static_cast<size_t>(padded_columns(columns)) * element;
}

void pack_rows(MatrixLayout layout, DType format, DType source_format, const std::byte* source,
               int64_t rows, int64_t columns, std::byte* target) {
  if (layout == MatrixLayout::kRows) {
    convert_elements(source_format, source, format, target, static_cast<size_t>(rows * columns));
    return;
  }
  const size_t element = dtype_bytes(format);
  const size_t source_row = static_cast<size_t>(columns) * dtype_bytes(source_format);
  const int64_t column_count = padded_columns(columns);
  std::memset(target, 0, packed_bytes(layout, format, rows, columns));
  // A few columns at a time keep the 64 rows' source lines and the target panel in the L1 cache.
  constexpr int64_t kStep = 32;
  std::byte converted[kStep * sizeof(float)];
  for (int64_t first = 0; first < columns; first += kStep) {
    const int64_t count = std::min(kStep, columns - first);
    for (int64_t row = 0; row < rows; ++row) {
      convert_elements(source_format,
                       source + static_cast<size_t>(row) * source_row +
                           static_cast<size_t>(first) * dtype_bytes(source_format),
                       format, converted, static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        const auto index = static_cast<size_t>(panel_index(format, row, first + i, column_count));
        std::memcpy(target + index * element, converted + static_cast<size_t>(i) * element,
                    element);
      }
    }
  }
}

void unpack_rows(MatrixLayout layout, DType format, const std::byte* source, int64_t rows,
                 int64_t columns, std::byte* target) {
  const size_t element = dtype_bytes(format);
  if (layout == MatrixLayout::kRows) {
    std::memcpy(target, source, static_cast<size_t>(rows * columns) * element);
    return;
  }
  const int64_t column_count = padded_columns(columns);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const auto index = static_cast<size_t>(panel_index(format, row, column, column_count));
      std::memcpy(target + static_cast<size_t>(row * columns + column) * element,
                  source + index * element, element);
    }
  }
}

}  // namespace spillway
