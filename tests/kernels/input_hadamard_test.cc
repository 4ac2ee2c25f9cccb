// Hadamard matrices over inputs and weights: their definition, their bits, and that they leave
// products what they were.
#include "kernels/input_hadamard.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/weight_layout.h"
#include "tests/support/packed_matrix.h"
#include "tests/support/random_data.h"
#include "tests/support/scalar_ops.h"

namespace spillway::input_hadamard_test {
namespace {

using test::random_floats;

std::vector<float> multiplied(HadamardOf of, std::vector<float> row) {
  multiply_by_hadamard(of, static_cast<int64_t>(row.size()), row.data());
  return row;
}

TEST_CASE("inputs are cut into blocks of 256, then into powers of two") {
  std::vector<int64_t> blocks;
  for (int64_t first = 0; first < 853; first += blocks.back()) {
    blocks.push_back(hadamard_block(first, 853));
  }
  CHECK(blocks == std::vector<int64_t>{256, 256, 256, 64, 16, 4, 1});
  for (int64_t block = 1; block <= kHadamardMax; block *= 2) {
    CHECK(input_factor(block) * weight_factor(block) == 1.0f / static_cast<float>(block));
    const double norm = input_factor(block) * std::sqrt(static_cast<double>(block));
    CHECK(norm >= 1);
    CHECK(norm < 1.5);
  }
}

TEST_CASE("each block is multiplied by the Walsh-Hadamard matrix of its size") {
  const int64_t columns = GENERATE(1, 2, 3, 5, 8, 16, 31, 32, 64, 100, 128, 256, 300, 576, 1023);
  const auto of = GENERATE(HadamardOf::kInputs, HadamardOf::kWeights);
  const auto row = random_floats(columns, 1);
  const auto found = multiplied(of, row);
  CHECK(found == scalar::hadamard(row, columns, of == HadamardOf::kInputs));
  for (int64_t first = 0; first < columns;) {
    const int64_t block = hadamard_block(first, columns);
    const float factor = of == HadamardOf::kInputs ? input_factor(block) : weight_factor(block);
    for (int64_t i = 0; i < block; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < block; ++j) {
        const double x = row[static_cast<size_t>(first + j)];
        sum += std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? x : -x;
      }
      REQUIRE(found[static_cast<size_t>(first + i)] == Approx(sum * factor).margin(1e-5));
    }
    first += block;
  }
}

TEST_CASE("a product of what was multiplied is the product of what was not") {
  const int64_t columns = GENERATE(1, 7, 64, 200, 256, 576, 1100);
  const auto x = random_floats(columns, 1), w = random_floats(columns, 2);
  const auto dot = [](const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
    return sum;
  };
  CHECK(dot(multiplied(HadamardOf::kInputs, x), multiplied(HadamardOf::kWeights, w)) ==
        Approx(dot(x, w)).margin(1e-4));
}

TEST_CASE("one large input among small ones is spread over its block, and no further") {
  std::vector<float> row(512, 0.01f);
  row[300] = 100.0f;
  const auto found = multiplied(HadamardOf::kInputs, row);
  for (size_t i = 0; i < 256; ++i) CHECK(std::abs(found[i]) <= 0.16f);
  for (size_t i = 256; i < 512; ++i) {
    CHECK(std::abs(found[i]) > 6.0f);
    CHECK(std::abs(found[i]) < 6.5f);
  }
  row[300] = std::numeric_limits<float>::quiet_NaN();
  const auto damaged = multiplied(HadamardOf::kInputs, row);
  for (size_t i = 0; i < 512; ++i) CHECK(std::isnan(damaged[i]) == (i >= 256));
}

TEST_CASE("rows are multiplied before they are quantised, by either layout") {
  const Format format = GENERATE(Format::kQ4, Format::kQ8);
  const auto layout = GENERATE(MatrixLayout::kRows, MatrixLayout::kPanels16);
  constexpr int64_t kRows = 70, kColumns = 330;
  const auto values = random_floats(kRows * kColumns, 3);
  std::vector<float> before = scalar::hadamard(values, kColumns, false);
  const test::PackedMatrix with(layout, format, values, kRows, kColumns, 64, true);
  const test::PackedMatrix of_product(layout, format, before, kRows, kColumns, 64);
  CHECK(with.matrix().hadamard);
  CHECK(with.rounded() == of_product.rounded());
}

}  // namespace
}  // namespace spillway::input_hadamard_test
