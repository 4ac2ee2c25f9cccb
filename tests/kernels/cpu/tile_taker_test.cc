// Products hand out the parts of a tile as they are finished, each once, whatever they are told of
// the place where these will be written.
#include "kernels/cpu/tile_taker.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/strips.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/packed_matrix.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/taken_parts.h"

namespace spillway::tile_taker_test {
namespace {

using test::PackedMatrix;
using test::random_floats;

// Runs multiply(tile, taker) once for a taker that does not know where outputs go, and for some
// that do; the tile is the same.
template <class Multiply>
void check_parts(int64_t rows, const Multiply& multiply) {
  alignas(64) float tile[cpu::kGemmRowsMax * cpu::kGemmColumns];
  const std::vector<std::byte> memory(1 << 19);
  std::vector<float> first;
  const cpu::TileOutputs somewhere[] = {{},
                                        {memory.data(), 256, 4, 64},
                                        {memory.data() + 2, 130, 2, 50},
                                        {memory.data(), 1 << 12, 4, 1}};
  for (const cpu::TileOutputs& outputs : somewhere) {
    std::memset(tile, 0xff, sizeof(tile));
    test::TakenParts taken(tile, rows);
    const auto take = [&](auto... part) { taken(part...); };
    multiply(tile, cpu::TileTaker::of(take, outputs));
    taken.check(1);
    if (first.empty()) first = taken.values();
    CHECK(first == taken.values());
  }
}

TEST_CASE(
    "each row of a strip is asked for once, the last ones of a whole strip with the last stretch") {
  const int64_t strip_rows = GENERATE(1, 4, 6, 12, 14);
  const int64_t stretches = GENERATE(1, 2, 5, 8, 11, 12, 13, 40);
  const std::byte somewhere{};
  const cpu::OutputsAhead ahead({&somewhere, 256, 4, 64}, strip_rows, stretches);
  for (int64_t height = 1; height <= strip_rows; ++height) {
    int64_t asked = 0;
    for (int64_t stretch = 0; stretch < stretches; ++stretch) {
      const auto rows = ahead.rows(stretch, height);
      if (rows.begin == rows.end) continue;
      CHECK(rows.begin == asked);
      CHECK(rows.end > rows.begin);
      asked = rows.end;
    }
    CHECK(asked == height);
  }
  const auto last = ahead.rows(stretches - 1, strip_rows);
  CHECK(last.end == strip_rows);
  CHECK(last.begin < last.end);
}

TEST_CASE("nothing is asked for where nobody says where outputs go") {
  const cpu::OutputsAhead nobody({}, 12, 3);
  for (int64_t stretch = 0; stretch < 3; ++stretch) {
    const auto rows = nobody.rows(stretch, 12);
    CHECK(rows.begin == rows.end);
  }
}

TEST_CASE("products in float32 hand out each part of a tile once, when it is finished") {
  const Format format = GENERATE(Format::kF32, Format::kF16, Format::kBF16, Format::kQ4);
  const int64_t rows = GENERATE(1, 13, 24, 40, 96);
  const int64_t columns = GENERATE(1, 192, 500, 3000);
  const PackedMatrix w(MatrixLayout::kPanels16, format,
                       random_floats(cpu::kGemmColumns * columns, 1), cpu::kGemmColumns, columns,
                       cpu::kGemmColumns);
  const auto in = random_floats(rows * columns, 2);
  test::for_each_instruction_set([&] {
    std::vector<float> packed(in.size());
    cpu::pack_strips(in.data(), columns, rows, columns, packed.data());
    check_parts(rows, [&](float* tile, const cpu::TileTaker& taker) {
      cpu::multiply_tile(packed.data(), rows, columns, format, w.matrix().slabs[0].data, tile,
                         taker);
    });
  });
}

TEST_CASE("products of bf16 pairs hand out each part of a tile once, when it is finished") {
  if (!cpu::has_bf16_dot()) return;
  const Format format = GENERATE(Format::kBF16, Format::kQ8, Format::kQ4);
  const int64_t rows = GENERATE(1, 13, 24, 40, 96);
  const int64_t columns = GENERATE(1, 192, 500, 3000);
  const PackedMatrix w(MatrixLayout::kPanels16, format,
                       random_floats(cpu::kGemmColumns * columns, 1), cpu::kGemmColumns, columns,
                       cpu::kGemmColumns);
  const auto in = test::bytes_of(DType::kBF16, random_floats(rows * columns, 2));
  const cpu::Strips strips(rows, cpu::kBf16StripRows);
  const int64_t group = is_grouped(format) ? format_traits(format).group : 0;
  const int64_t pairs = cpu::pair_columns(columns);
  const int64_t sums = group == 0 ? 0 : cpu::sum_groups(columns, group);
  std::vector<uint32_t> packed(static_cast<size_t>(rows * pairs));
  std::vector<float> group_sums(static_cast<size_t>(rows * sums));
  const auto from = [&](int64_t row) {
    return cpu::Bf16Strips{packed.data() + row * pairs,
                           group == 0 ? nullptr : group_sums.data() + row * sums, group};
  };
  for (int64_t s = 0; s < strips.count(); ++s) {
    const int64_t row = strips.first(s);
    cpu::pack_bf16_strip(reinterpret_cast<const uint16_t*>(in.data()) + row * columns, columns,
                         strips.height(s), columns, from(row));
  }
  check_parts(rows, [&](float* tile, const cpu::TileTaker& taker) {
    cpu::multiply_bf16_tile(from(0), rows, columns, format, w.matrix().slabs[0].data, tile, taker);
  });
}

}  // namespace
}  // namespace spillway::tile_taker_test
