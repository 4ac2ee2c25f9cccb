#include "kernels/weight_layout.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

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

constexpr int64_t kQ4PanelRows = 16;

// Byte offset of the group that holds (row, column) of a kQ4 matrix in kPanels16.
size_t q4_group_offset(int64_t row, int64_t column, int64_t columns) {
  const int64_t groups = padded_columns(MatrixLayout::kPanels16, DType::kQ4, columns) / kQ4Group;
  return static_cast<size_t>(row / kQ4PanelRows * groups + column / kQ4Group) *
         sizeof(Q4PanelGroup);
}

// Numbers of a source row, widened.
std::span<const float> widen(DType format, const std::byte* source, int64_t count, float* widened) {
  convert_elements(format, source, DType::kF32, reinterpret_cast<std::byte*>(widened),
                   static_cast<size_t>(count));
  return {widened, static_cast<size_t>(count)};
}

void pack_q4_panels(DType source_format, const std::byte* source, int64_t rows, int64_t columns,
                    std::byte* target, Q4Error* error) {
  const size_t element = dtype_bytes(source_format);
  std::memset(target, 0, packed_bytes(MatrixLayout::kPanels16, DType::kQ4, rows, columns));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < columns; first += kQ4Group) {
      float widened[kQ4Group];
      uint8_t nibbles[kQ4Group];
      const auto values =
          widen(source_format, source + static_cast<size_t>(row * columns + first) * element,
                std::min(kQ4Group, columns - first), widened);
      const Q4Scale scale = quantize_q4(values, nibbles);
      if (error != nullptr) add_q4_error(values, scale, nibbles, error);
      const int64_t r = row % kQ4PanelRows;
      auto* group = reinterpret_cast<Q4PanelGroup*>(target + q4_group_offset(row, first, columns));
      group->scale[r] = scale.scale;
      group->minimum[r] = scale.minimum;
      for (size_t i = 0; i < values.size(); ++i) {
        group->words[i / 8][r] |= uint32_t{nibbles[i]} << (4 * (i % 8));
      }
    }
  }
}

void unpack_q4_panels(const std::byte* source, int64_t rows, int64_t columns, float* target) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t r = row % kQ4PanelRows;
    for (int64_t column = 0; column < columns; ++column) {
      const auto* group =
          reinterpret_cast<const Q4PanelGroup*>(source + q4_group_offset(row, column, columns));
      const int64_t i = column % kQ4Group;
      target[row * columns + column] =
          q4_value(group->words[i / 8][r] >> (4 * (i % 8)) & 15u, f16_to_f32(group->scale[r]),
                   f16_to_f32(group->minimum[r]));
    }
  }
}

// A row at a time: a table's rows are looked up.
void pack_q4_rows(DType source_format, const std::byte* source, int64_t rows, int64_t columns,
                  std::byte* target, Q4Error* error) {
  std::vector<float> widened(static_cast<size_t>(columns));
  const size_t source_row = static_cast<size_t>(columns) * dtype_bytes(source_format);
  for (int64_t row = 0; row < rows; ++row) {
    const auto index = static_cast<size_t>(row);
    pack_q4_row(widen(source_format, source + index * source_row, columns, widened.data()),
                target + index * q4_row_bytes(columns), error);
  }
}

void unpack_q4_rows(const std::byte* source, int64_t rows, int64_t columns, float* target) {
  for (int64_t row = 0; row < rows; ++row) {
    unpack_q4_row(source + static_cast<size_t>(row) * q4_row_bytes(columns),
                  {target + row * columns, static_cast<size_t>(columns)});
  }
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

bool layout_holds(MatrixLayout layout, DType format) {
  return format != DType::kQ4 || layout != MatrixLayout::kPanels64;
}

int64_t padded_columns(MatrixLayout layout, DType format, int64_t columns) {
  if (layout == MatrixLayout::kRows) return columns;
  const int64_t multiple = format == DType::kQ4     ? kQ4Group
                           : format == DType::kBF16 ? 2 * kPanelColumnMultiple
                                                    : kPanelColumnMultiple;
  return (columns + multiple - 1) / multiple * multiple;
}

size_t packed_bytes(MatrixLayout layout, DType format, int64_t rows, int64_t columns) {
  SPILLWAY_CHECK(layout_holds(layout, format));
  if (format == DType::kQ4) {
    if (layout == MatrixLayout::kRows) return static_cast<size_t>(rows) * q4_row_bytes(columns);
    const auto all_rows = static_cast<int64_t>(
        round_up(static_cast<uint64_t>(rows), static_cast<uint64_t>(kPanelRowMultiple)));
    return q4_group_offset(all_rows, 0, columns);
  }
  const size_t element = dtype_bytes(format);
  if (layout == MatrixLayout::kRows) return static_cast<size_t>(rows * columns) * element;
  return round_up(static_cast<uint64_t>(rows), kPanelRowMultiple) *
         static_cast<size_t>(padded_columns(layout, format, columns)) * element;
}

void pack_rows(MatrixLayout layout, DType format, DType source_format, const std::byte* source,
               int64_t rows, int64_t columns, std::byte* target, Q4Error* error) {
  SPILLWAY_CHECK(layout_holds(layout, format));
  if (format == DType::kQ4) {
    const auto pack = layout == MatrixLayout::kRows ? &pack_q4_rows : &pack_q4_panels;
    return pack(source_format, source, rows, columns, target, error);
  }
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
  SPILLWAY_CHECK(layout_holds(layout, format));
  if (format == DType::kQ4) {
    const auto unpack = layout == MatrixLayout::kRows ? &unpack_q4_rows : &unpack_q4_panels;
    return unpack(source, rows, columns, reinterpret_cast<float*>(target));
  }
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

Q4ScaleOffsets q4_scale_offsets(MatrixLayout layout, int64_t columns, int64_t row, int64_t group) {
  SPILLWAY_CHECK(layout_holds(layout, DType::kQ4));
  if (layout == MatrixLayout::kRows) {
    const size_t scale = static_cast<size_t>(row) * q4_row_bytes(columns) +
                         static_cast<size_t>(group) * q4_row_bytes(kQ4Group);
    return {scale + offsetof(Q4Scale, scale), scale + offsetof(Q4Scale, minimum)};
  }
  const size_t start = q4_group_offset(row, group * kQ4Group, columns) +
                       static_cast<size_t>(row % kQ4PanelRows) * sizeof(uint16_t);
  return {start + offsetof(Q4PanelGroup, scale), start + offsetof(Q4PanelGroup, minimum)};
}

}  // namespace spillway
