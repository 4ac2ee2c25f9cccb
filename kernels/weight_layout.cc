#include "kernels/weight_layout.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/base/checked_math.h"
#include "kernels/weight_panels.h"

namespace spillway {

namespace {

constexpr int64_t kPanelRows = 16;  // Outputs per panel of kPanels16

// Numbers of a source row, widened.
std::span<const float> widen(DType type, const std::byte* source, int64_t count, float* widened) {
  convert_elements(type, source, DType::kF32, reinterpret_cast<std::byte*>(widened),
                   static_cast<size_t>(count));
  return {widened, static_cast<size_t>(count)};
}

// Byte offset of the group that holds (row, column) of a quantised matrix in kPanels16.
template <Format kOf>
size_t group_offset(int64_t row, int64_t column, int64_t columns) {
  constexpr int64_t kGroup = QuantTraits<kOf>::kGroup;
  const int64_t groups = padded_columns(MatrixLayout::kPanels16, kOf, columns) / kGroup;
  return static_cast<size_t>(row / kPanelRows * groups + column / kGroup) * sizeof(PanelGroup<kOf>);
}

// Writes the codes of output `r` of a zeroed group.
template <Format kOf>
void put_codes(std::span<const uint8_t> codes, const GroupScale& scale, int64_t r, std::byte* to) {
  using Traits = QuantTraits<kOf>;
  auto* group = reinterpret_cast<PanelGroup<kOf>*>(to);
  group->scale[r] = scale.scale;
  group->minimum[r] = scale.minimum;
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t field = i % Traits::kFields;
    group->words[i / Traits::kFields][r] |= uint32_t{codes[i]} << (Traits::kBits * field);
  }
}

// Codes of output `r` of a group, and its scale and minimum.
template <Format kOf>
GroupScale codes_of(const std::byte* from, int64_t r, std::span<uint8_t> codes) {
  using Traits = QuantTraits<kOf>;
  const auto* group = reinterpret_cast<const PanelGroup<kOf>*>(from);
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t shift = Traits::kBits * (i % Traits::kFields);
    codes[i] = static_cast<uint8_t>(group->words[i / Traits::kFields][r] >> shift & Traits::kMask);
  }
  return {group->scale[r], group->minimum[r]};
}

// Quantises rows into those of a zeroed matrix from `at` on.
template <Format kOf>
void quantize_panels(DType source_type, const std::byte* source, int64_t at, int64_t rows,
                     int64_t columns, std::byte* target, QuantError* error) {
  using Traits = QuantTraits<kOf>;
  const size_t element = dtype_bytes(source_type);
  float widened[Traits::kGroup];
  uint8_t codes[Traits::kGroup];
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < columns; first += Traits::kGroup) {
      const auto values =
          widen(source_type, source + static_cast<size_t>(row * columns + first) * element,
                std::min(Traits::kGroup, columns - first), widened);
      const GroupScale scale = quantize_group(Traits::kBits, values, codes);
      if (error != nullptr) add_group_error(Traits::kBits, values, scale, codes, error);
      put_codes<kOf>({codes, values.size()}, scale, (at + row) % kPanelRows,
                     target + group_offset<kOf>(at + row, first, columns));
    }
  }
}

template <Format kOf>
void unpack_quantized_panels(const std::byte* source, int64_t rows, int64_t columns,
                             float* target) {
  using Traits = QuantTraits<kOf>;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t r = row % kPanelRows;
    for (int64_t first = 0; first < columns; first += Traits::kGroup) {
      const auto* group =
          reinterpret_cast<const PanelGroup<kOf>*>(source + group_offset<kOf>(row, first, columns));
      const float scale = f16_to_f32(group->scale[r]), minimum = f16_to_f32(group->minimum[r]);
      for (int64_t i = 0; i < std::min(Traits::kGroup, columns - first); ++i) {
        const uint32_t word = group->words[i / Traits::kFields][r];
        const uint32_t code = word >> (Traits::kBits * (i % Traits::kFields)) & Traits::kMask;
        target[row * columns + first + i] = quantized_value(code, scale, minimum);
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
    return with_quant_traits(format, [&](auto traits) {
      return group_offset<traits.kFormat>(static_cast<int64_t>(all_rows), 0, columns);
    });
  }
  return all_rows * format_row_bytes(format, padded_columns(layout, format, columns));
}

void pack_rows(MatrixLayout layout, Format format, DType source_type, const std::byte* source,
               int64_t rows, int64_t columns, std::byte* target, QuantError* error,
               ConversionCounts* counts) {
  SPILLWAY_CHECK(layout_holds(layout, format));
  if (is_quantized(format)) {
    if (layout == MatrixLayout::kRows) {
      return pack_quantized_rows(format, source_type, source, rows, columns, target, error);
    }
    std::memset(target, 0, packed_bytes(layout, format, rows, columns));
    return quantize_rows(layout, format, source_type, source, 0, rows, columns, target, error);
  }
  const DType type = element_of(format);
  if (layout == MatrixLayout::kRows) {
    return convert_numbers(source_type, source, type, target, static_cast<size_t>(rows * columns),
                           counts);
  }
  pack_panels(layout, format, source_type, source, rows, columns, target, counts);
}

void unpack_rows(MatrixLayout layout, Format format, const std::byte* source, int64_t rows,
                 int64_t columns, std::byte* target) {
  SPILLWAY_CHECK(layout_holds(layout, format));
  if (is_quantized(format)) {
    auto* const numbers = reinterpret_cast<float*>(target);
    if (layout == MatrixLayout::kRows) {
      return unpack_quantized_rows(format, source, rows, columns, numbers);
    }
    return with_quant_traits(format, [&](auto traits) {
      unpack_quantized_panels<traits.kFormat>(source, rows, columns, numbers);
    });
  }
  if (layout == MatrixLayout::kRows) {
    std::memcpy(target, source, packed_bytes(layout, format, rows, columns));
    return;
  }
  unpack_panels(layout, format, source, rows, columns, target);
}

void quantize_rows(MatrixLayout layout, Format format, DType source_type, const std::byte* source,
                   int64_t at, int64_t rows, int64_t columns, std::byte* target,
                   QuantError* error) {
  SPILLWAY_CHECK(is_quantized(format) && layout_holds(layout, format));
  if (layout == MatrixLayout::kRows) {
    target += static_cast<size_t>(at) * format_row_bytes(format, columns);
    return pack_quantized_rows(format, source_type, source, rows, columns, target, error);
  }
  with_quant_traits(format, [&](auto traits) {
    quantize_panels<traits.kFormat>(source_type, source, at, rows, columns, target, error);
  });
}

void put_group(MatrixLayout layout, Format format, int64_t columns, int64_t row, int64_t group,
               std::span<const uint8_t> codes, const GroupScale& scale, std::byte* target) {
  SPILLWAY_CHECK(is_quantized(format) && layout_holds(layout, format));
  if (layout == MatrixLayout::kRows) {
    std::byte* const at =
        target + static_cast<size_t>(row) * format_row_bytes(format, columns) +
        static_cast<size_t>(group) * format_row_bytes(format, format_traits(format).group);
    return store_group(format, codes, scale, at);
  }
  with_quant_traits(format, [&](auto traits) {
    put_codes<traits.kFormat>(
        codes, scale, row % kPanelRows,
        target + group_offset<traits.kFormat>(row, group * traits.kGroup, columns));
  });
}

void move_groups(Format format, int64_t rows, int64_t columns, MatrixLayout from,
                 const std::byte* source, MatrixLayout to, std::byte* target) {
  SPILLWAY_CHECK(is_quantized(format) && layout_holds(from, format));
  std::memset(target, 0, packed_bytes(to, format, rows, columns));
  with_quant_traits(format, [&](auto traits) {
    uint8_t codes[traits.kGroup];
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t group = 0; group * traits.kGroup < columns; ++group) {
        const auto count =
            static_cast<size_t>(std::min(traits.kGroup, columns - group * traits.kGroup));
        const std::span<uint8_t> some(codes, count);
        const GroupScale scale =
            from == MatrixLayout::kRows
                ? load_group(format,
                             source + static_cast<size_t>(row) * format_row_bytes(format, columns) +
                                 static_cast<size_t>(group * traits.kGroupBytes),
                             some)
                : codes_of<traits.kFormat>(
                      source + group_offset<traits.kFormat>(row, group * traits.kGroup, columns),
                      row % kPanelRows, some);
        put_group(to, format, columns, row, group, some, scale, target);
      }
    }
  });
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
  return with_quant_traits(format, [&](auto traits) -> ScaleOffsets {
    using Group = PanelGroup<traits.kFormat>;
    const size_t start = group_offset<traits.kFormat>(row, group * size, columns) +
                         static_cast<size_t>(row % kPanelRows) * sizeof(uint16_t);
    return {start + offsetof(Group, scale), start + offsetof(Group, minimum)};
  });
}

}  // namespace spillway
