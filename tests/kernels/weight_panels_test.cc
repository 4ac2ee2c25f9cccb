// Panels packed in vectors hold every number where weight_layout.h says, and give it back.
#include "kernels/weight_panels.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/base/dtype.h"

namespace spillway::weight_panels_test {
namespace {

constexpr MatrixLayout kPanelLayouts[] = {MatrixLayout::kPanels16, MatrixLayout::kPanels64};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Where weight_layout.h says that (row, column) lies.
size_t index_of(MatrixLayout layout, Format format, int64_t row, int64_t column, int64_t columns) {
  const int64_t width = panel_rows(layout), padded = padded_columns(layout, format, columns);
  const int64_t panel = row / width * padded * width, r = row % width;
  return static_cast<size_t>(format == Format::kBF16
                                 ? panel + column / 2 * (2 * width) + r * 2 + column % 2
                                 : panel + column * width + r);
}

// Every bit pattern counts, NaN included.
std::vector<std::byte> random_numbers(DType type, int64_t count) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * dtype_bytes(type));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<std::byte> packed_one_by_one(MatrixLayout layout, Format format, DType source_type,
                                         const std::vector<std::byte>& source, int64_t rows,
                                         int64_t columns) {
  const size_t element = dtype_bytes(element_of(format));
  std::vector<std::byte> packed(packed_bytes(layout, format, rows, columns));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      convert_elements(
          source_type,
          source.data() + static_cast<size_t>(row * columns + column) * dtype_bytes(source_type),
          element_of(format),
          packed.data() + index_of(layout, format, row, column, columns) * element, 1);
    }
  }
  return packed;
}

TEST_CASE("panels hold every number in its place, the padding zero, and give it back") {
  for (const MatrixLayout layout : kPanelLayouts) {
    for (const DType to : kTypes) {
      const Format format = plain_format(to);
      if (!layout_holds(layout, format)) continue;
      for (const DType from : kTypes) {
        for (const int64_t rows : {1, 15, 64, 70, 130}) {
          for (const int64_t columns : {1, 16, 31, 32, 100, 255, 256, 300, 544}) {
            INFO(layout_name(layout) << " " << dtype_name(from) << " to " << dtype_name(to) << " "
                                     << rows << " x " << columns);
            const auto source = random_numbers(from, rows * columns);
            const auto expected = packed_one_by_one(layout, format, from, source, rows, columns);
            std::vector<std::byte> packed(expected.size(), std::byte{0xa5});
            pack_rows(layout, format, from, source.data(), rows, columns, packed.data());
            CHECK(packed == expected);
            std::vector<std::byte> dense(static_cast<size_t>(rows * columns) * dtype_bytes(to));
            std::vector<std::byte> unpacked(dense.size());
            convert_elements(from, source.data(), to, dense.data(),
                             static_cast<size_t>(rows * columns));
            unpack_rows(layout, format, packed.data(), rows, columns, unpacked.data());
            CHECK(unpacked == dense);
          }
        }
      }
    }
  }
}

TEST_CASE("numbers that are not finite are counted while rows are packed, padding is not") {
  const int64_t rows = 21, columns = 300;
  std::vector<float> numbers(static_cast<size_t>(rows * columns), 1.0f);
  numbers[7] = -std::numeric_limits<float>::infinity();
  numbers[299] = std::numeric_limits<float>::quiet_NaN();
  numbers[300 * 20 + 299] = std::numeric_limits<float>::quiet_NaN();
  numbers[300 * 20] = 70000.0f;  // Too large for f16
  numbers[300 * 3 + 257] = std::numeric_limits<float>::max();
  const auto* source = reinterpret_cast<const std::byte*>(numbers.data());
  for (const MatrixLayout layout :
       {MatrixLayout::kRows, MatrixLayout::kPanels16, MatrixLayout::kPanels64}) {
    for (const auto& [format, overflow] :
         {std::pair(Format::kF32, 0), std::pair(Format::kBF16, 1), std::pair(Format::kF16, 2)}) {
      if (!layout_holds(layout, format)) continue;
      INFO(layout_name(layout) << " " << format_name(format));
      std::vector<std::byte> packed(packed_bytes(layout, format, rows, columns));
      ConversionCounts counts;
      pack_rows(layout, format, DType::kF32, source, rows, columns, packed.data(), nullptr,
                &counts);
      CHECK(counts.source.nan == 2);
      CHECK(counts.source.inf == 1);
      CHECK(counts.overflow == static_cast<uint64_t>(overflow));
      CHECK(counts.target().inf == static_cast<uint64_t>(1 + overflow));
    }
  }
}

TEST_CASE("a panel of 16-bit rows is what pack_rows() makes") {
  for (const Format format : {Format::kBF16, Format::kF16}) {
    for (const MatrixLayout layout : kPanelLayouts) {
      if (!layout_holds(layout, format)) continue;
      for (const int64_t columns : {1, 16, 31, 32, 100, 160}) {
        INFO(format_name(format) << " " << layout_name(layout) << " " << columns);
        const auto padded = static_cast<size_t>(padded_columns(layout, format, columns));
        const auto rows = static_cast<size_t>(panel_rows(layout));
        const auto source = random_numbers(element_of(format), 64 * columns);
        std::vector<std::byte> whole(packed_bytes(layout, format, 64, columns));
        pack_rows(layout, format, element_of(format), source.data(), 64, columns, whole.data());
        std::vector<std::byte> dense(rows * padded * 2), panel(rows * padded * 2);
        const size_t row_bytes = static_cast<size_t>(columns) * 2;
        for (size_t first = 0; first < 64; first += rows) {
          for (size_t r = 0; r < rows; ++r) {
            std::memcpy(&dense[r * padded * 2], &source[(first + r) * row_bytes], row_bytes);
          }
          pack_panel(layout, format, columns, dense.data(), panel.data());
          CHECK(std::memcmp(panel.data(), whole.data() + first * padded * 2, panel.size()) == 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway::weight_panels_test
