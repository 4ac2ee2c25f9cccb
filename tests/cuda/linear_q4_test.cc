// The kernel for few rows over 4-bit weights: what the conformance tests (kernels/linear_test.cc)
// cannot see of it.
#include <catch2/catch.hpp>

#include "kernels/ops.h"
#include "tests/support/cuda_emulation.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/test_devices.h"

namespace spillway {
namespace {

using test::DeviceArray;
using test::DeviceMatrix;
using test::PackedMatrix;

// Two chunks of columns and a bit, outputs that end within a warp's four.
constexpr int64_t kOutputs = 37, kColumns = 2 * 1024 + 70;

class Product {
 public:
  Product()
      : device_(open_cuda_device(0).value()),
        stream_(device_->new_stream("test")),
        packed_(device_->matrix_layout(DType::kQ4), DType::kQ4,
                test::random_floats(kOutputs * kColumns, 2), kOutputs, kColumns, 64),
        weights_(*device_, *stream_, packed_) {}

  // Of rows [first, first + rows) of eight.
  std::vector<float> run(int64_t first, int64_t rows) {
    const auto all = test::random_floats(8 * kColumns, 1);
    const std::vector<float> in(all.begin() + first * kColumns,
                                all.begin() + (first + rows) * kColumns);
    const DeviceArray<std::byte> there(*device_, *stream_, test::bytes_of(DType::kBF16, in));
    const DeviceArray<float> out(*device_, *stream_,
                                 std::vector<float>(static_cast<size_t>(rows * kOutputs)));
    linear(*stream_, {.in = dense_matrix(there.data(), DType::kBF16, rows, kColumns),
                      .weight = weights_.matrix(),
                      .out = out.matrix(rows, kOutputs)});
    return out.read();
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  PackedMatrix packed_;
  DeviceMatrix weights_;
};

TEST_CASE("a row over 4-bit weights is the same alone and among others, in any order of threads") {
  Product product;
  emulation::set_seed(1);
  const std::vector<float> all = product.run(0, 8);
  for (const int64_t rows : {1, 2, 3, 4, 7}) {
    emulation::set_seed(static_cast<uint64_t>(10 + rows));
    for (int64_t first = 0; first + rows <= 8; first += rows) {
      INFO(rows << " rows from " << first);
      const std::vector<float> some = product.run(first, rows);
      CHECK(std::equal(some.begin(), some.end(), all.begin() + first * kOutputs));
    }
  }
}

TEST_CASE("without its barriers the kernel over 4-bit weights is wrong") {
  Product product;
  const std::vector<float> expected = product.run(0, 3);
  emulation::remove_barriers(true);
  int wrong = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    emulation::set_seed(seed);
    wrong += product.run(0, 3) == expected ? 0 : 1;
  }
  emulation::remove_barriers(false);
  INFO(wrong << " of 10 orders of the threads");
  CHECK(wrong >= 5);
  CHECK(product.run(0, 3) == expected);
}

}  // namespace
}  // namespace spillway
