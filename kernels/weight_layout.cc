#include "kernels/weight_layout.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/checked_math.h"

namespace spillway {

namespace {

int64_t panel_width(MatrixLayout layout) {
  return layout == MatrixLayout::kPanels16 ? 16 : 64;
}

// Element index of (row, column) inside the packed matrix.
int64_t panel_index(MatrixLayout layout, DType format, int64_t row, int64_t column,
                    int64_t column_count) {
  const int64_t width = panel_width(layout);
  const int64_t panel = row / width * column_count * width;
  const int64_t r = row % width;
  if (format != DType::kBF16) return panel + column * width + r;
  return panel + column / 2 * (2 * width) + r * 2 + column % 2;
}

}  // namespace

std::string_view layout_name(MatrixLayout layout) {
  switch (layout) {
    case MatrixLayout::kRows:
      return "rows";
    case MatrixLayout::kPanels16:
      return "panels16";
    case MatrixLayout::kPanels64:
      return "panels64";
  }
  return "?";
}

std::optional<MatrixLayout> layout_of_name(std::string_view name) {
  for (MatrixLayout layout :
       {MatrixLayout::kRows, MatrixLayout::kPanels16, MatrixLayout::kPanels64}) {
    if (layout_name(layout) == name) return layout;
  }
  return std::nullopt;
}

int64_t padded_columns(MatrixLayout layout, DType format, int64_t columns) {
  if (layout == MatrixLayout::kRows) return columns;
  const int64_t multiple = format == DType::kBF16 ? 2 * kPanelColumnMultiple : kPanelColumnMultiple;
  return (columns + multiple - 1) / multiple * multiple;
}

size_t packed_bytes(MatrixLayout layout, DType format, int64_t rows, int64_t columns) {
  const size_t element = dtype_bytes(format);
  if (layout == MatrixLayout::kRows) return static_cast<size_t>(rows * columns) * element;
  return round_up(static_cast<uint64_t>(rows), kPanelRowMultiple) *
         static_cast<size_t>(padded_columns(layout, format, columns)) * element;
}

void pack_rows(MatrixLayout layout, DType format, DType source_format, const std::byte* source,
               int64_t rows, int64_t columns, std::byte* target) {
  if (layout == MatrixLayout::kRows) {
    convert_elements(source_format, source, format, target, static_cast<size_t>(rows * columns));
    return;
  }
  const size_t element = dtype_bytes(format);
  const size_t source_row = static_cast<size_t>(columns) * dtype_bytes(source_format);
  const int64_t column_count = padded_columns(layout, format, columns);
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
        const auto index =
            static_cast<size_t>(panel_index(layout, format, row, first + i, column_count));
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
  const int64_t column_count = padded_columns(layout, format, columns);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const auto index =
          static_cast<size_t>(panel_index(layout, format, row, column, column_count));
      std::memcpy(target + static_cast<size_t>(row * columns + column) * element,
                  source + index * element, element);
    }
  }
}

}  // namespace spillway
