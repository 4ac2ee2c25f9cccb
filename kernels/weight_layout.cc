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
int64_t panel_index(MatrixLayout layout, Format format, int64_t row, int64_t column,
                    int64_t column_count) {
  const int64_t width = panel_width(layout);
  const int64_t panel = row / width * column_count * width;
  const int64_t r = row % width;
  if (format != Format::kBF16) return panel + column * width + r;
  return panel + column / 2 * (2 * width) + r * 2 + column % 2;
}

constexpr int64_t kPanelRows = 16;  // Outputs per panel of kPanels16

// Numbers of a source row, widened.
std::span<const float> widen(DType type, const std::byte* source, int64_t count, float* widened) {
  convert_elements(type, source, DType::kF32, reinterpret_cast<std::byte*>(widened),
                   static_cast<size_t>(count));
  return {widened, static_cast<size_t>(count)};
}

// Groups of one quantised format in a 16-output panel: each holds the same inputs of all outputs of
// the panel.
struct PanelGroups {
  size_t bytes, scale, minimum;  // Size of a group; in it, the offsets of float16[16]
  // Quantises `values`, output `r` of a zeroed group.
  void (*pack)(std::span<const float> values, int64_t r, std::byte* group, QuantError* error);
  // Input `i` of output `r`.
  float (*number)(const std::byte* group, int64_t r, int64_t i);
};

void pack_q4(std::span<const float> values, int64_t r, std::byte* to, QuantError* error) {
  uint8_t nibbles[kQ4Group];
  const Q4Scale scale = quantize_q4(values, nibbles);
  if (error != nullptr) add_q4_error(values, scale, nibbles, error);
  auto* group = reinterpret_cast<Q4PanelGroup*>(to);
  group->scale[r] = scale.scale;
  group->minimum[r] = scale.minimum;
  for (size_t i = 0; i < values.size(); ++i) {
    group->words[i / 8][r] |= uint32_t{nibbles[i]} << (4 * (i % 8));
  }
}

float number_of_q4(const std::byte* from, int64_t r, int64_t i) {
  const auto* group = reinterpret_cast<const Q4PanelGroup*>(from);
  return q4_value(group->words[i / 8][r] >> (4 * (i % 8)) & 15u, f16_to_f32(group->scale[r]),
                  f16_to_f32(group->minimum[r]));
}

const PanelGroups& panel_groups(Format format) {
  static constexpr PanelGroups kOfQ4{sizeof(Q4PanelGroup), offsetof(Q4PanelGroup, scale),
                                     offsetof(Q4PanelGroup, minimum), pack_q4, number_of_q4};
  SPILLWAY_CHECK(format == Format::kQ4);
  return kOfQ4;
}

// Byte offset of the group that holds (row, column) of a quantised matrix in kPanels16.
size_t group_offset(Format format, int64_t row, int64_t column, int64_t columns) {
  const int64_t group = format_traits(format).group;
  const int64_t groups = padded_columns(MatrixLayout::kPanels16, format, columns) / group;
  return static_cast<size_t>(row / kPanelRows * groups + column / group) *
         panel_groups(format).bytes;
}

void pack_quantized_panels(Format format, DType source_type, const std::byte* source, int64_t rows,
                           int64_t columns, std::byte* target, QuantError* error) {
  const PanelGroups& groups = panel_groups(format);
  const int64_t group = format_traits(format).group;
  const size_t element = dtype_bytes(source_type);
  std::memset(target, 0, packed_bytes(MatrixLayout::kPanels16, format, rows, columns));
  std::vector<float> widened(static_cast<size_t>(group));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < columns; first += group) {
      const auto values =
          widen(source_type, source + static_cast<size_t>(row * columns + first) * element,
                std::min(group, columns - first), widened.data());
      groups.pack(values, row % kPanelRows, target + group_offset(format, row, first, columns),
                  error);
    }
  }
}

void unpack_quantized_panels(Format format, const std::byte* source, int64_t rows, int64_t columns,
                             float* target) {
  const PanelGroups& groups = panel_groups(format);
  const int64_t group = format_traits(format).group;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < columns; first += group) {
      const std::byte* from = source + group_offset(format, row, first, columns);
      for (int64_t i = 0; i < std::min(group, columns - first); ++i) {
        target[row * columns + first + i] = groups.number(from, row % kPanelRows, i);
      }
    }
  }
}

// Packs one row at a time: a table's rows are looked up.
void pack_quantized_rows(Format format, DType source_type, const std::byte* source, int64_t rows,
                         int64_t columns, std::byte* target, QuantError* error) {
  std::vector<float> widened(static_cast<size_t>(columns));
  const size_t source_row = static_cast<size_t>(columns) * dtype_bytes(source_type);
  const size_t target_row = format_row_bytes(format, columns);
  for (int64_t row = 0; row < rows; ++row) {
    const auto index = static_cast<size_t>(row);
    pack_quantized_row(format,
                       widen(source_type, source + index * source_row, columns, widened.data()),
                       target + index * target_row, error);
  }
}

void unpack_quantized_rows(Format format, const std::byte* source, int64_t rows, int64_t columns,
                           float* target) {
  const size_t source_row = format_row_bytes(format, columns);
  for (int64_t row = 0; row < rows; ++row) {
    unpack_quantized_row(format, source + static_cast<size_t>(row) * source_row,
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

bool layout_holds(MatrixLayout layout, Format format) {
  return !is_quantized(format) || layout != MatrixLayout::kPanels64;
}

int64_t padded_columns(MatrixLayout layout, Format format, int64_t columns) {
  if (layout == MatrixLayout::kRows) return columns;
  const int64_t multiple = is_quantized(format)      ? format_traits(format).group
                           : format == Format::kBF16 ? 2 * kPanelColumnMultiple
                                                     : kPanelColumnMultiple;
  return (columns + multiple - 1) / multiple * multiple;
}

size_t packed_bytes(MatrixLayout layout, Format format, int64_t rows, int64_t columns) {
  SPILLWAY_CHECK(layout_holds(layout, format));
  if (layout == MatrixLayout::kRows) {
    return static_cast<size_t>(rows) * format_row_bytes(format, columns);
  }
  const uint64_t all_rows = round_up(static_cast<uint64_t>(rows), kPanelRowMultiple);
  if (is_quantized(format)) {
    return group_offset(format, static_cast<int64_t>(all_rows), 0, columns);
  }
  return all_rows * format_row_bytes(format, padded_columns(layout, format, columns));
}

void pack_rows(MatrixLayout layout, Format format, DType source_type, const std::byte* source,
               int64_t rows, int64_t columns, std::byte* target, QuantError* error) {
  SPILLWAY_CHECK(layout_holds(layout, format));
  if (is_quantized(format)) {
    const auto pack = layout == MatrixLayout::kRows ? &pack_quantized_rows : &pack_quantized_panels;
    return pack(format, source_type, source, rows, columns, target, error);
  }
  const DType type = element_of(format);
  if (layout == MatrixLayout::kRows) {
    convert_elements(source_type, source, type, target, static_cast<size_t>(rows * columns));
    return;
  }
  const size_t element = dtype_bytes(type);
  const size_t source_row = static_cast<size_t>(columns) * dtype_bytes(source_type);
  const int64_t column_count = padded_columns(layout, format, columns);
  std::memset(target, 0, packed_bytes(layout, format, rows, columns));
  // A few columns at a time keep the 64 rows' source lines and the target panel in the L1 cache.
  constexpr int64_t kStep = 32;
  std::byte converted[kStep * sizeof(float)];
  for (int64_t first = 0; first < columns; first += kStep) {
    const int64_t count = std::min(kStep, columns - first);
    for (int64_t row = 0; row < rows; ++row) {
      convert_elements(source_type,
                       source + static_cast<size_t>(row) * source_row +
                           static_cast<size_t>(first) * dtype_bytes(source_type),
                       type, converted, static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        const auto index =
            static_cast<size_t>(panel_index(layout, format, row, first + i, column_count));
        std::memcpy(target + index * element, converted + static_cast<size_t>(i) * element,
                    element);
      }
    }
  }
}

void unpack_rows(MatrixLayout layout, Format format, const std::byte* source, int64_t rows,
                 int64_t columns, std::byte* target) {
  SPILLWAY_CHECK(layout_holds(layout, format));
  if (is_quantized(format)) {
    const auto unpack =
        layout == MatrixLayout::kRows ? &unpack_quantized_rows : &unpack_quantized_panels;
    return unpack(format, source, rows, columns, reinterpret_cast<float*>(target));
  }
  const size_t element = dtype_bytes(element_of(format));
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

ScaleOffsets scale_offsets(MatrixLayout layout, Format format, int64_t columns, int64_t row,
                           int64_t group) {
  SPILLWAY_CHECK(is_quantized(format) && layout_holds(layout, format));
  const int64_t size = format_traits(format).group;
  if (layout == MatrixLayout::kRows) {
    // They lie in front of a group's numbers.
    const size_t scale = static_cast<size_t>(row) * format_row_bytes(format, columns) +
                         static_cast<size_t>(group) * format_row_bytes(format, size);
    return {scale, scale + sizeof(uint16_t)};
  }
  const PanelGroups& groups = panel_groups(format);
  const size_t start = group_offset(format, row, group * size, columns) +
                       static_cast<size_t>(row % kPanelRows) * sizeof(uint16_t);
  return {start + groups.scale, start + groups.minimum};
}

}  // namespace spillway
