// The panels of 8-bit weights with a scale an output: every byte against the definition, and rows
// and panels as places of the same codes.
#include "kernels/q8_panels.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "kernels/weight_layout.h"
#include "tests/support/packed_matrix.h"
#include "tests/support/random_data.h"
#include "tests/support/scalar_ops.h"

namespace spillway::q8_panels_test {
namespace {

using test::PackedMatrix;
using test::random_floats;

constexpr int64_t kRows = 70;  // A whole slab, and one of six rows

TEST_CASE("panels of 8-bit weights have scales, bytes above zero and padding in their places") {
  const int64_t columns = GENERATE(1, 3, 63, 64, 65, 200);
  const auto values = random_floats(kRows * columns, 5);
  const PackedMatrix packed(MatrixLayout::kPanels16, Format::kQ8, values, kRows, columns, 64);
  const int64_t padded = padded_columns(MatrixLayout::kPanels16, Format::kQ8, columns);
  CHECK(padded == (columns + 63) / 64 * 64);
  CHECK(packed_bytes(MatrixLayout::kPanels16, Format::kQ8, kRows, columns) ==
        static_cast<size_t>(8 * (64 + padded * 16)));
  for (int64_t slab = 0; slab < 2; ++slab) {
    const std::byte* const bytes = packed.matrix().slabs[static_cast<size_t>(slab)].data;
    for (int64_t row = 0; row < 64; ++row) {
      const Q8Panel panel = q8_panel(bytes, columns, row / 16);
      const int64_t of_matrix = slab * 64 + row, r = row % 16;
      scalar::Q8Row expected{0, std::vector<int>(static_cast<size_t>(columns))};
      if (of_matrix < kRows) {
        const auto* const from = values.data() + of_matrix * columns;
        expected = scalar::q8_row({from, from + columns});
      }
      REQUIRE(panel.scales[r] == expected.scale);
      REQUIRE(row_scale_offset(MatrixLayout::kPanels16, columns, row) ==
              static_cast<size_t>(reinterpret_cast<const std::byte*>(panel.scales + r) - bytes));
      for (int64_t c = 0; c < padded; ++c) {
        const int code = c < columns ? expected.codes[static_cast<size_t>(c)] : 0;
        REQUIRE(panel.codes[c / 4 * 64 + r * 4 + c % 4] == code + 128);
      }
    }
  }
}

TEST_CASE("rows and panels hold the same 8-bit weights, and move into each other") {
  const int64_t columns = GENERATE(1, 31, 64, 65, 200);
  const auto values = random_floats(kRows * columns, 6);
  const PackedMatrix rows(MatrixLayout::kRows, Format::kQ8, values, kRows, columns, kRows);
  const PackedMatrix panels(MatrixLayout::kPanels16, Format::kQ8, values, kRows, columns, kRows);
  CHECK(rows.rounded() == panels.rounded());
  for (const PackedMatrix* from : {&rows, &panels}) {
    for (const PackedMatrix* to : {&rows, &panels}) {
      const MatrixLayout layout = to->matrix().layout;
      const size_t bytes = packed_bytes(layout, Format::kQ8, kRows, columns);
      std::vector<std::byte> moved(bytes, std::byte{0x5a});
      move_codes(Format::kQ8, kRows, columns, from->matrix().layout, from->matrix().slabs[0].data,
                 layout, moved.data());
      CHECK(std::memcmp(moved.data(), to->matrix().slabs[0].data, bytes) == 0);
    }
  }
  float scale;
  std::memcpy(&scale,
              rows.matrix().slabs[0].data + row_scale_offset(MatrixLayout::kRows, columns, 3),
              sizeof(scale));
  const auto* const third = values.data() + 3 * columns;
  CHECK(scale == scalar::q8_row({third, third + columns}).scale);
}

TEST_CASE("8-bit rows go into a matrix at any place, from any type of numbers") {
  const auto layout = GENERATE(MatrixLayout::kRows, MatrixLayout::kPanels16);
  constexpr int64_t kColumns = 67;
  const auto values = random_floats(64 * kColumns, 7, 0.02f);
  std::vector<std::byte> narrow(values.size() * sizeof(uint16_t));
  convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), DType::kBF16,
                   narrow.data(), values.size());
  const size_t bytes = packed_bytes(layout, Format::kQ8, 64, kColumns);
  std::vector<std::byte> whole(bytes), parts(bytes);
  QuantError of_whole, of_parts;
  pack_rows(layout, Format::kQ8, DType::kBF16, narrow.data(), 64, kColumns, whole.data(),
            &of_whole);
  for (const auto& [at, count] : {std::pair(0, 10), std::pair(10, 1), std::pair(11, 53)}) {
    quantize_rows(layout, Format::kQ8, DType::kBF16,
                  narrow.data() + static_cast<size_t>(at * kColumns) * sizeof(uint16_t), at, count,
                  kColumns, parts.data(), &of_parts);
  }
  CHECK(whole == parts);
  CHECK(of_whole.relative_rms() == Approx(of_parts.relative_rms()));
}

}  // namespace
}  // namespace spillway::q8_panels_test
