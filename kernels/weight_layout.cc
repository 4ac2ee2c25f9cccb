#include "kernels/weight_layout.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/base/checked_math.h"
#include "kernels/base/quantized_rows.h"
#include "kernels/input_hadamard.h"
#include "kernels/integer_groups.h"
#include "kernels/q8_panels.h"
#include "kernels/weight_panels.h"

namespace spillway {

namespace {

constexpr int64_t kPanelRows = 16;  // Outputs per panel of kPanels16
static_assert(kPanelRows == kQ8PanelRows);

// Row-major numbers that are to be quantised.
struct SourceRows {
  DType type;
  const std::byte* data;
  int64_t columns;
  bool hadamard;

  // The numbers of a row, widened into `to`.
  std::span<const float> row(int64_t index, std::span<float> to) const {
    const auto count = static_cast<size_t>(columns);
    convert_elements(type, data + static_cast<size_t>(index) * count * dtype_bytes(type),
                     DType::kF32, reinterpret_cast<std::byte*>(to.data()), count);
    if (hadamard) multiply_by_hadamard(HadamardOf::kWeights, columns, to.data());
    return to;
  }
};

// Quantises rows of kQ8 into those of a matrix from `at` on.
void quantize_q8_panels(const SourceRows& source, int64_t at, int64_t rows, std::byte* target,
                        QuantError* error) {
  const auto count = static_cast<size_t>(source.columns);
  std::vector<float> widened(count);
  std::vector<int8_t> codes(count);
  for (int64_t row = 0; row < rows; ++row) {
    const auto values = source.row(row, widened);
    const float scale = quantize_q8_row(values, codes.data());
    if (error != nullptr) add_q8_error(values, scale, codes.data(), error);
    put_q8_row(at + row, codes, scale, target);
  }
}

void unpack_q8_panels(const std::byte* source, int64_t rows, int64_t columns, float* target) {
  std::vector<int8_t> codes(static_cast<size_t>(columns));
  for (int64_t row = 0; row < rows; ++row) {
    const float scale = take_q8_row(source, row, codes);
    for (const int8_t code : codes) *target++ = q8_value(code, scale);
  }
}

// Quantises rows of a table of kQ8.
void quantize_q8_rows(const SourceRows& source, int64_t rows, std::byte* target,
                      QuantError* error) {
  std::vector<float> widened(static_cast<size_t>(source.columns));
  for (int64_t row = 0; row < rows; ++row) {
    pack_q8_row(source.row(row, widened), target, error);
    target += format_row_bytes(Format::kQ8, source.columns);
  }
}

// Moves kQ8's rows from one layout into another, which may be the same.
void move_q8_rows(int64_t rows, int64_t columns, MatrixLayout from, const std::byte* source,
                  MatrixLayout to, std::byte* target) {
  const size_t row_bytes = format_row_bytes(Format::kQ8, columns);
  std::vector<int8_t> codes(static_cast<size_t>(columns));
  for (int64_t row = 0; row < rows; ++row) {
    const size_t in_rows = static_cast<size_t>(row) * row_bytes;
    float scale;
    if (from == MatrixLayout::kRows) {
      std::memcpy(&scale, source + in_rows, sizeof(scale));
      std::memcpy(codes.data(), source + in_rows + sizeof(scale), codes.size());
    } else {
      scale = take_q8_row(source, row, codes);
    }
    if (to == MatrixLayout::kRows) {
      std::memcpy(target + in_rows, &scale, sizeof(scale));
      std::memcpy(target + in_rows + sizeof(scale), codes.data(), codes.size());
    } else {
      put_q8_row(row, codes, scale, target);
    }
  }
}

// Fills a quantised matrix with zeros.
void clear(MatrixLayout layout, Format format, int64_t rows, int64_t columns, std::byte* target) {
  if (is_grouped(format) || layout == MatrixLayout::kRows) {
    std::memset(target, 0, packed_bytes(layout, format, rows, columns));
    return;
  }
  const auto all_rows = round_up(static_cast<uint64_t>(rows), kPanelRowMultiple);
  clear_q8_panels(static_cast<int64_t>(all_rows) / kPanelRows, columns, target);
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
  constexpr auto kFields = static_cast<size_t>(Traits::kFields);
  for (size_t first = 0; first < codes.size(); first += kFields) {
    const size_t count = std::min(kFields, codes.size() - first);
    uint32_t word = 0;
    for (size_t i = 0; i < count; ++i) {
      word |= uint32_t{codes.data()[first + i]} << (Traits::kBits * i);
    }
    group->words[first / kFields][r] = word;
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

// Quantises rows, one at a time, and gives each group of them to
// put(row, group, codes, scale).
template <class Put>
void quantize_groups(Format format, const SourceRows& source, int64_t rows, QuantError* error,
                     const Put& put) {
  const FormatTraits& traits = format_traits(format);
  const auto count = static_cast<size_t>(source.columns), size = static_cast<size_t>(traits.group);
  std::vector<float> widened(count);
  std::vector<uint8_t> codes(count);
  std::vector<GroupScale> scales((count + size - 1) / size);
  for (int64_t row = 0; row < rows; ++row) {
    const auto values = source.row(row, widened);
    quantize_weights(format, values, codes.data(), scales.data());
    for (size_t group = 0; group < scales.size(); ++group) {
      const size_t first = group * size, here = std::min(size, count - first);
      const std::span<const uint8_t> some(codes.data() + first, here);
      if (error != nullptr) {
        add_group_error(traits.bits, values.subspan(first, here), scales[group], some.data(),
                        error);
      }
      put(row, static_cast<int64_t>(group), some, scales[group]);
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
  return layout != MatrixLayout::kPanels64 || format == Format::kBF16;
}

int64_t padded_columns(MatrixLayout layout, Format format, int64_t columns) {
  if (layout == MatrixLayout::kRows) return columns;
  const int64_t multiple = is_grouped(format)        ? format_traits(format).group
                           : format == Format::kQ8   ? kQ8ColumnMultiple
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
  if (format == Format::kQ8) return all_rows / kPanelRows * q8_panel_bytes(columns);
  if (is_quantized(format)) {
    return with_quant_traits(format, [&](auto traits) {
      return group_offset<traits.kFormat>(static_cast<int64_t>(all_rows), 0, columns);
    });
  }
  return all_rows * format_row_bytes(format, padded_columns(layout, format, columns));
}

void pack_rows(MatrixLayout layout, Format format, DType source_type, const std::byte* source,
               int64_t rows, int64_t columns, std::byte* target, QuantError* error,
               ConversionCounts* counts, bool hadamard) {
  SPILLWAY_CHECK(layout_holds(layout, format) && (is_quantized(format) || !hadamard));
  if (is_quantized(format)) {
    clear(layout, format, rows, columns, target);
    return quantize_rows(layout, format, source_type, source, 0, rows, columns, target, error,
                         hadamard);
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
    if (format == Format::kQ8) return unpack_q8_panels(source, rows, columns, numbers);
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
                   int64_t at, int64_t rows, int64_t columns, std::byte* target, QuantError* error,
                   bool hadamard) {
  SPILLWAY_CHECK(is_quantized(format) && layout_holds(layout, format));
  const SourceRows numbers{source_type, source, columns, hadamard};
  if (format == Format::kQ8) {
    if (layout == MatrixLayout::kPanels16) {
      return quantize_q8_panels(numbers, at, rows, target, error);
    }
    target += static_cast<size_t>(at) * format_row_bytes(format, columns);
    return quantize_q8_rows(numbers, rows, target, error);
  }
  quantize_groups(
      format, numbers, rows, error,
      [&](int64_t row, int64_t group, std::span<const uint8_t> codes, const GroupScale& scale) {
        put_group(layout, format, columns, at + row, group, codes, scale, target);
      });
}

void put_group(MatrixLayout layout, Format format, int64_t columns, int64_t row, int64_t group,
               std::span<const uint8_t> codes, const GroupScale& scale, std::byte* target) {
  SPILLWAY_CHECK(is_grouped(format) && layout_holds(layout, format));
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

void move_codes(Format format, int64_t rows, int64_t columns, MatrixLayout from,
                const std::byte* source, MatrixLayout to, std::byte* target) {
  SPILLWAY_CHECK(is_quantized(format) && layout_holds(from, format));
  clear(to, format, rows, columns, target);
  if (format == Format::kQ8) return move_q8_rows(rows, columns, from, source, to, target);
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
  SPILLWAY_CHECK(is_grouped(format) && layout_holds(layout, format));
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

size_t row_scale_offset(MatrixLayout layout, int64_t columns, int64_t row) {
  SPILLWAY_CHECK(layout_holds(layout, Format::kQ8));
  if (layout == MatrixLayout::kRows) {
    return static_cast<size_t>(row) * format_row_bytes(Format::kQ8, columns);
  }
  return static_cast<size_t>(row / kPanelRows) * q8_panel_bytes(columns) +
         static_cast<size_t>(row % kPanelRows) * sizeof(float);
}

}  // namespace spillway
