// Few rows over quantised weights on tensor cores: what the conformance tests
// (kernels/linear_test.cc) cannot see of it.
#include <catch2/catch.hpp>

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

class Product {
 public:
  explicit Product(Format format, DType in = DType::kBF16)
      : in_(in),
        device_(open_cuda_device(0).value()),
        stream_(device_->new_stream("test")),
        whole_(device_->matrix_layout(format), format, values(), kOutputs, kColumns, 192),
        parts_(device_->matrix_layout(format), format, values(), kOutputs, kColumns, kSlabRows),
        weights_(*device_, *stream_, whole_),
        apart_(*device_, *stream_, parts_) {
    // Slabs that lie one behind the other in memory.
    std::byte* const data = const_cast<std::byte*>(weights_.matrix().slabs[0].data);
    const size_t row = format_row_bytes(format, kColumns);
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

  // Rows [first, first + rows) of kFewRows.
  std::vector<float> run(const WeightMatrix& weights, int64_t first, int64_t rows) {
    const DeviceArray<std::byte> in(*device_, *stream_, test::bytes_of(in_, input(first, rows)));
    const DeviceArray<float> out(*device_, *stream_,
                                 std::vector<float>(static_cast<size_t>(rows * kOutputs), 0.5f));
    linear(*stream_, {.in = dense_matrix(in.data(), in_, rows, kColumns),
                      .weight = weights,
                      .out = out.matrix(rows, kOutputs),
                      .accumulate = true});
    return out.read();
  }

  // What that should be.
  std::vector<float> expected(int64_t first, int64_t rows) const {
    std::vector<float> found =
        scalar::linear(test::rounded(in_, input(first, rows)), test::rounded(in_, whole_.rounded()),
                       {}, {}, Activation::kNone, rows, kOutputs, kColumns);
    for (float& x : found) x += 0.5f;
    return found;
  }

 private:
  static std::vector<float> values() { return test::random_floats(kOutputs * kColumns, 2); }
  static std::vector<float> input(int64_t first, int64_t rows) {
    const auto all = test::random_floats(kFewRows * kColumns, 1);
    return {all.begin() + first * kColumns, all.begin() + (first + rows) * kColumns};
  }

  const DType in_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  test::PackedMatrix whole_, parts_;
  test::DeviceMatrix weights_, apart_;
  std::vector<WeightSlab> slabs_;
};

TEST_CASE("a product has the same bits for any rows beside it, wherever the slabs lie") {
  Product product(GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8));
  emulation::set_seed(1);
  const std::vector<float> all = product.run(product.whole(), 0, kFewRows);
  emulation::set_seed(2);
  CHECK(product.run(product.apart(), 0, kFewRows) == all);
  CHECK(product.run(product.behind(), 0, kFewRows) == all);
  for (const int64_t rows : {1, 5, 9, 16, 23}) {
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
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8);
  INFO(dtype_name(in) << ", " << format_name(format));
  Product product(format, in);
  for (const int64_t rows : {1, 8, 12, 30}) {
    INFO(rows << " rows");
    const auto found = product.run(product.behind(), 2, rows);
    CHECK(test::relative_error(found, product.expected(2, rows)) < 2e-5);
  }
}

}  // namespace
}  // namespace spillway::linear_quant_mma_test
