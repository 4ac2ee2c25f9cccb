// 8-bit products by matrix units as linear() has them, bit for bit those of vectors, which multiply
// a dozen rows or fewer. (gemm_int8_test.cc, which this program runs as well, holds both against
// the definition.)
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/cpu/gemm_int8.h"
#include "kernels/input_hadamard.h"
#include "kernels/ops.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/packed_matrix.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/skip.h"
#include "tests/support/test_devices.h"

namespace spillway::gemm_int8_amx_test {
namespace {

using test::bytes_of;
using test::PackedMatrix;
using test::random_floats;

constexpr int64_t kFewRows = 12;  // By vectors

bool has_both() {
  const bool both = cpu::has_int8() && &cpu::int8_bodies(100) == &cpu::kInt8Amx;
  if (!both) test::skip("this CPU has no AVX-512 VNNI, which products by matrix units use as well");
  return both;
}

struct Case {
  Format format;
  int64_t outputs, inputs;
  bool hadamard = false;
};

struct Product {
  explicit Product(const Case& c, int64_t rows, CpuMatmul how = CpuMatmul::kInt8)
      : device(open_cpu_device(2, how).value()),
        stream(device->new_stream("test")),
        type(device->activation_dtype(c.format)),
        in(bytes_of(type, random_floats(rows * c.inputs, 1))),
        weights(device->matrix_layout(c.format), c.format, random_floats(c.outputs * c.inputs, 2),
                c.outputs, c.inputs, 64, c.hadamard) {}

  std::vector<float> of(int64_t first, int64_t rows) {
    const WeightMatrix w = weights.matrix();
    std::vector<float> out(static_cast<size_t>(rows * w.rows));
    const size_t row_bytes = static_cast<size_t>(w.columns) * dtype_bytes(type);
    linear(*stream, {.in = dense_matrix(in.data() + static_cast<size_t>(first) * row_bytes, type,
                                        rows, w.columns),
                     .weight = w,
                     .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kF32,
                                         rows, w.rows)});
    CHECK(stream->record().wait().ok());
    return out;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  DType type;
  std::vector<std::byte> in;
  PackedMatrix weights;
};

void check_rows(const Case& c, const std::vector<int64_t>& counts) {
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  Product product(c, most);
  std::vector<float> expected;
  for (int64_t row = 0; row < most; row += kFewRows) {
    const auto part = product.of(row, std::min(kFewRows, most - row));
    expected.insert(expected.end(), part.begin(), part.end());
  }
  for (const int64_t rows : counts) {
    INFO(format_name(c.format) << ", " << rows << " rows, " << c.outputs << " outputs, " << c.inputs
                               << " inputs, Hadamard matrices " << c.hadamard);
    for (const int64_t first : {int64_t{0}, most - rows}) {
      const auto got = product.of(first, rows);
      CHECK(std::equal(got.begin(), got.end(), expected.begin() + first * c.outputs));
    }
  }
}

TEST_CASE("rows multiplied by matrix units have the bits of rows multiplied by vectors") {
  if (!has_both()) return;
  const Format format = GENERATE(Format::kQ8, Format::kQ4, Format::kQ4_1);
  const bool hadamard = GENERATE(false, true) && takes_hadamard(format);
  for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{64, 64},
                                        {1, 1},
                                        {70, 33},
                                        {130, 300},
                                        {200, 515},
                                        {65, 1100},
                                        {64, 2113}}) {
    check_rows({format, outputs, inputs, hadamard}, {13, 16, 17, 31, 32, 33, 48, 63, 70});
  }
}

TEST_CASE("every number of rows is multiplied alike by matrix units", "[slow]") {
  if (!has_both()) return;
  const Format format = GENERATE(Format::kQ8, Format::kQ4_1);
  std::vector<int64_t> counts;
  for (int64_t rows = 1; rows <= (test::thorough() ? 70 : 20); ++rows) counts.push_back(rows);
  check_rows({format, 70, 290}, counts);
}

// Weights that are expanded for one block of rows are kept for those behind it.
TEST_CASE("blocks of rows share what matrix units multiply by") {
  if (!has_both()) return;
  const Format format = GENERATE(Format::kQ8, Format::kQ4, Format::kQ4_1);
  check_rows({format, 136, 515, takes_hadamard(format)}, {95, 96, 97, 109, 192, 200, 291});
}

TEST_CASE("matrix units multiply more than a dozen rows, in every choice of products") {
  if (!has_both()) return;
  for (const CpuMatmul how : {CpuMatmul::kFastest, CpuMatmul::kInt8}) {
    Product product({Format::kQ8, 64, 256, true}, 13, how);
    const uint64_t before = test::emulated_tile_instructions();
    product.of(0, 12);
    CHECK(test::emulated_tile_instructions() == before);
    product.of(0, 13);
    CHECK((test::emulated_tile_instructions() > before) == !test::has_tile_instructions());
  }
}

}  // namespace
}  // namespace spillway::gemm_int8_amx_test
