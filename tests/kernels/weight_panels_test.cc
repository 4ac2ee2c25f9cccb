// Panels packed 16 bytes at a time hold what pack_rows() packs number by number.
#include "kernels/weight_panels.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/base/dtype.h"

namespace spillway::weight_panels_test {
namespace {

TEST_CASE("a panel of 16-bit rows is what pack_rows() makes") {
  std::mt19937 random(7);
  for (const Format format : {Format::kBF16, Format::kF16}) {
    for (const MatrixLayout layout : {MatrixLayout::kPanels16, MatrixLayout::kPanels64}) {
      for (const int64_t columns : {1, 16, 31, 32, 100, 160}) {
        INFO(format_name(format) << " " << layout_name(layout) << " " << columns);
        const auto padded = static_cast<size_t>(padded_columns(layout, format, columns));
        const auto rows = static_cast<size_t>(panel_rows(layout));
        // Every bit pattern counts, NaN included.
        std::vector<uint16_t> source(static_cast<size_t>(64 * columns));
        for (uint16_t& number : source) number = static_cast<uint16_t>(random());
        std::vector<std::byte> whole(packed_bytes(layout, format, 64, columns));
        pack_rows(layout, format, element_of(format),
                  reinterpret_cast<const std::byte*>(source.data()), 64, columns, whole.data());
        std::vector<uint16_t> dense(rows * padded);
        std::vector<std::byte> panel(rows * padded * 2);
        for (size_t first = 0; first < 64; first += rows) {
          for (size_t r = 0; r < rows; ++r) {
            std::memcpy(&dense[r * padded], &source[(first + r) * static_cast<size_t>(columns)],
                        static_cast<size_t>(columns) * 2);
          }
          pack_panel(layout, format, columns, reinterpret_cast<const std::byte*>(dense.data()),
                     panel.data());
          CHECK(std::memcmp(panel.data(), whole.data() + first * padded * 2, panel.size()) == 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway::weight_panels_test
