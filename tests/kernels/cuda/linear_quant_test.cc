// The kernels for few rows over quantised weights: what the conformance tests
// (kernels/linear_test.cc) cannot see of it.
#include <catch2/catch.hpp>

#include "kernels/ops.h"
#include "tests/support/cuda_emulation.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::linear_quant_test {
namespace {

using test::DeviceArray;
using test::DeviceMatrix;
using test::PackedMatrix;

// Two chunks of columns and a bit, outputs that end within a warp's four.
constexpr int64_t kOutputs = 37, kColumns = 2 * 1024 + 70;

class Product {
 public:
  explicit Product(Format format, DType in = DType::kBF16)
      : in_(in),
        device_(open_cuda_device(0).value()),
        stream_(device_->new_stream("test")),
        packed_(device_->matrix_layout(format), format, test::random_floats(kOutputs * kColumns, 2),
                kOutputs, kColumns, 64),
        weights_(*device_, *stream_, packed_) {}

  // Of rows [first, first + rows) of kFewRows.
  std::vector<float> run(int64_t first, int64_t rows, bool narrow_out = false) {
    const DType out_format = narrow_out ? in_ : DType::kF32;
    const DeviceArray<std::byte> there(*device_, *stream_, test::bytes_of(in_, input(first, rows)));
    const DeviceArray<std::byte> out(
        *device_, *stream_,
        std::vector<std::byte>(static_cast<size_t>(rows * kOutputs) * dtype_bytes(out_format)));
    linear(*stream_, {.in = dense_matrix(there.data(), in_, rows, kColumns),
                      .weight = weights_.matrix(),
                      .out = dense_matrix(out.data(), out_format, rows, kOutputs)});
    return test::floats_of(out_format, out.read());
  }

  // What it should be, of weights that are expanded in the format of what goes in.
  std::vector<float> expected(int64_t first, int64_t rows) const {
    return scalar::linear(test::rounded(in_, input(first, rows)),
                          test::rounded(in_, packed_.rounded()), {}, {}, Activation::kNone, rows,
                          kOutputs, kColumns);
  }

 private:
  static std::vector<float> input(int64_t first, int64_t rows) {
    const auto all = test::random_floats(kFewRows * kColumns, 1);
    return {all.begin() + first * kColumns, all.begin() + (first + rows) * kColumns};
  }

  const DType in_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  PackedMatrix packed_;
  DeviceMatrix weights_;
};

TEST_CASE(
    "a row over quantised weights is the same alone and among others, in any order of threads") {
  Product product(GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8_1, Format::kQ8));
  emulation::set_seed(1);
  const std::vector<float> all = product.run(0, kFewRows);
  for (const int64_t rows : {1, 2, 3, 4, 7, 9, 16, 31}) {
    emulation::set_seed(static_cast<uint64_t>(10 + rows));
    for (int64_t first = 0; first + rows <= kFewRows; first += rows) {
      if (rows < 5 && first >= 8) break;
      INFO(rows << " rows from " << first);
      const std::vector<float> some = product.run(first, rows);
      CHECK(std::equal(some.begin(), some.end(), all.begin() + first * kOutputs));
    }
  }
}

TEST_CASE(
    "quantised weights with activations in either format of 16 bits agree with the definition") {
  for (const DType in : {DType::kBF16, DType::kF16}) {
    const Format format = GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8_1, Format::kQ8);
    INFO(dtype_name(in) << ", " << format_name(format));
    Product product(format, in);
    for (const int64_t rows : {1, 2, 4, 7, 12, 30}) {
      const auto expected = product.expected(1, rows);
      CHECK(test::relative_error(product.run(1, rows), expected) < 2e-5);
      const double one_place = in == DType::kF16 ? 0x1p-10 : 0x1p-7;
      CHECK(test::relative_error(product.run(1, rows, true), expected) < one_place);
    }
  }
}

}  // namespace
}  // namespace spillway::linear_quant_test
