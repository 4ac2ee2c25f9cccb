// Few rows over quantised weights on tensor cores: what the conformance tests
// (kernels/linear_test.cc) cannot see of it.
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/ops.h"
#include "tests/support/cuda_emulation.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::linear_quant_mma_test {
namespace {

using test::DeviceArray;

// Eight chunks of columns, which several blocks share, and one that is short; outputs that end
// within a block's.
constexpr int64_t kOutputs = 150, kColumns = 8 * 256 + 64, kSlabRows = 64;

std::vector<float> random_values(int64_t columns = kColumns) {
  return test::random_floats(kOutputs * columns, 2);
}

class Product {
 public:
  explicit Product(Format format, DType in = DType::kBF16,
                   const std::vector<float>& values = random_values(), int64_t columns = kColumns)
      : in_(in),
        columns_(columns),
        x_(test::random_floats(kFewRows * columns, 1)),
        device_(open_cuda_device(0).value()),
        stream_(device_->new_stream("test")),
        whole_(device_->matrix_layout(format), format, values, kOutputs, columns, 192),
        parts_(device_->matrix_layout(format), format, values, kOutputs, columns, kSlabRows),
        weights_(*device_, *stream_, whole_),
        apart_(*device_, *stream_, parts_) {
    // Slabs that lie one behind the other in memory.
    std::byte* const data = const_cast<std::byte*>(weights_.matrix().slabs[0].data);
    const size_t row = format_row_bytes(format, columns);
    for (int64_t first = 0; first < kOutputs; first += kSlabRows) {
      slabs_.push_back(
          {data + static_cast<size_t>(first) * row, std::min(kSlabRows, kOutputs - first)});
    }
  }

  const WeightMatrix& whole() const { return weights_.matrix(); }
  const WeightMatrix& apart() const { return apart_.matrix(); }
  WeightMatrix behind() const {
    WeightMatrix matrix = apart_.matrix();
    matrix.slabs = slabs_;
    return matrix;
  }

  // Number `column` of a row of what goes in.
  float& x(int64_t row, int64_t column) { return x_[static_cast<size_t>(row * columns_ + column)]; }

  // Rows [first, first + rows) of kFewRows.
  std::vector<float> run(const WeightMatrix& weights, int64_t first, int64_t rows) {
    const DeviceArray<std::byte> in(*device_, *stream_, test::bytes_of(in_, input(first, rows)));
    const DeviceArray<float> out(*device_, *stream_,
                                 std::vector<float>(static_cast<size_t>(rows * kOutputs), 0.5f));
    linear(*stream_, {.in = dense_matrix(in.data(), in_, rows, columns_),
                      .weight = weights,
                      .out = out.matrix(rows, kOutputs),
                      .accumulate = true});
    return out.read();
  }

  // What that should be: codes are multiplied, so weights are not rounded to the format of what
  // goes in.
  std::vector<float> expected(int64_t first, int64_t rows) const {
    std::vector<float> found =
        scalar::linear(test::rounded(in_, input(first, rows)), whole_.rounded(), {}, {},
                       Activation::kNone, rows, kOutputs, columns_);
    for (float& x : found) x += 0.5f;
    return found;
  }

 private:
  std::vector<float> input(int64_t first, int64_t rows) const {
    return {x_.begin() + first * columns_, x_.begin() + (first + rows) * columns_};
  }

  const DType in_;
  const int64_t columns_;
  std::vector<float> x_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  test::PackedMatrix whole_, parts_;
  test::DeviceMatrix weights_, apart_;
  std::vector<WeightSlab> slabs_;
};

TEST_CASE("a product has the same bits for any rows beside it, wherever the slabs lie") {
  Product product(GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8_1));
  emulation::set_seed(1);
  const std::vector<float> all = product.run(product.whole(), 0, kFewRows);
  emulation::set_seed(2);
  CHECK(product.run(product.apart(), 0, kFewRows) == all);
  CHECK(product.run(product.behind(), 0, kFewRows) == all);
  for (const int64_t rows :
       {int64_t{1}, int64_t{5}, int64_t{9}, int64_t{16}, int64_t{23}, kFewRows - 17}) {
    emulation::set_seed(static_cast<uint64_t>(10 + rows));
    for (const int64_t first : {int64_t{0}, kFewRows - rows}) {
      INFO(rows << " rows from " << first);
      const std::vector<float> some = product.run(product.apart(), first, rows);
      CHECK(std::equal(some.begin(), some.end(), all.begin() + first * kOutputs));
    }
  }
}

TEST_CASE("products on tensor cores agree with their definition") {
  const DType in = GENERATE(DType::kBF16, DType::kF16);
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8_1);
  INFO(dtype_name(in) << ", " << format_name(format));
  Product product(format, in);
  for (const int64_t rows : {int64_t{1}, int64_t{8}, int64_t{12}, int64_t{30}, kFewRows - 3}) {
    INFO(rows << " rows");
    const auto found = product.run(product.behind(), 2, rows);
    CHECK(test::relative_error(found, product.expected(2, rows)) < 2e-5);
  }
}

TEST_CASE("products on tensor cores of a few columns, of rows that are read 16 bytes at a time") {
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8_1);
  for (const int64_t columns : {64, 192, 256, 3 * 256, 5 * 256 + 128}) {
    INFO(format_name(format) << ", " << columns << " columns");
    Product product(format, DType::kBF16, random_values(columns), columns);
    const auto found = product.run(product.whole(), 0, 11);
    CHECK(test::relative_error(found, product.expected(0, 11)) < 2e-5);
  }
}

// A group's product is of codes, and of its scale and minimum: these may be far apart, and so large
// that they are infinite in the format of what goes in when they are multiplied.
TEST_CASE("products on tensor cores of groups with unlike scales and minimums") {
  const DType in = GENERATE(DType::kBF16, DType::kF16);
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8_1);
  INFO(dtype_name(in) << ", " << format_name(format));
  const auto check = [&](float factor, float added) {
    INFO(factor << " * values + " << added);
    std::vector<float> values = random_values();
    for (float& value : values) value = value * factor + added;
    Product product(format, in, values);
    const auto found = product.run(product.whole(), 0, 9);
    CHECK(test::relative_error(found, product.expected(0, 9)) < 2e-5);
  };
  check(1e-3f, 1000);
  check(1e-3f, -1000);
  check(3e4f, 0);
  check(1e-6f, 0);
}

TEST_CASE("infinities and NaN come out of products on tensor cores as by their definition") {
  const DType in = GENERATE(DType::kBF16, DType::kF16);
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8_1);
  INFO(dtype_name(in) << ", " << format_name(format));
  constexpr int64_t kRows = 12;
  Product product(format, in);
  const auto before = product.run(product.whole(), 0, kRows);
  product.x(1, 70) = INFINITY;
  product.x(3, 2000) = -INFINITY;
  product.x(4, 5) = product.x(4, 1029) = INFINITY;
  product.x(9, kColumns - 1) = NAN;
  const auto found = product.run(product.whole(), 0, kRows);
  const auto expected = product.expected(0, kRows);
  int infinities = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t output = 0; output < kOutputs; ++output) {
      const auto at = static_cast<size_t>(row * kOutputs + output);
      INFO("row " << row << ", output " << output);
      if (std::isfinite(expected[at])) {
        REQUIRE(found[at] == before[at]);
      } else if (std::isnan(expected[at])) {
        REQUIRE(std::isnan(found[at]));
      } else {
        REQUIRE(found[at] == expected[at]);
        ++infinities;
      }
    }
  }
  CHECK(infinities > 2 * kOutputs);
}

}  // namespace
}  // namespace spillway::linear_quant_mma_test
