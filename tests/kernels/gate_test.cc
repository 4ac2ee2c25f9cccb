// The gate of a gated MLP, on every device and in every format, against the scalar definition.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ops.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::gate_test {
namespace {

using test::DeviceArray;
using test::random_floats;
using test::relative_error;

TEST_CASE("gate_rows agrees with its definition, in place", "[sanitizer]") {
  const auto dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF16);
  const auto activation =
      GENERATE(Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu);
  const int64_t columns = GENERATE(1, 7, 64, 300);
  constexpr int64_t kRows = 11;
  const auto in = test::rounded(dtype, random_floats(kRows * 2 * columns, 41, 3.0f));
  const auto expected = scalar::gate(activation, in, kRows, columns);
  for (const auto& device : test::test_devices()) {
    if (dtype == DType::kF16 && device->kind() == DeviceKind::kCpu) continue;
    INFO(device->name() << ", " << dtype_name(dtype) << ", columns " << columns << ", "
                        << activation_name(activation));
    const auto stream = device->new_stream("test");
    const DeviceArray<std::byte> x(*device, *stream, test::bytes_of(dtype, in));
    const MatrixView both = dense_matrix(x.data(), dtype, kRows, 2 * columns);
    MatrixView out = both;
    out.columns = columns;
    gate_rows(*stream, {.activation = activation, .in = both, .out = out});
    const auto all = test::floats_of(dtype, x.read());
    std::vector<float> found;
    for (int64_t row = 0; row < kRows; ++row) {
      const auto first = all.begin() + row * 2 * columns;
      found.insert(found.end(), first, first + columns);
      // The second half stays.
      CHECK(std::equal(first + columns, first + 2 * columns,
                       in.begin() + row * 2 * columns + columns));
    }
    const double error = dtype == DType::kF32 ? 2e-6 : dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
    CHECK(relative_error(found, expected) < error);
  }
}

TEST_CASE("SiLU is right where its power ends, with any instructions") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> in = {-1e30f,  -100.0f, -87.5f, -86.9f, -17.0f, -1.0f,
                                 -1e-30f, -0.0f,   0.0f,   1e-30f, 0.5f,   17.0f,
                                 86.9f,   87.5f,   88.8f,  100.0f, 1e30f,  kInfinity};
  const auto count = static_cast<int64_t>(in.size());
  test::for_each_instruction_set([&] {
    const auto device = open_cpu_device(1).value();
    const auto stream = device->new_stream("test");
    std::vector<float> row = in;
    row.insert(row.end(), in.size(), 1.0f);  // What the gate is multiplied by
    const MatrixView both =
        dense_matrix(reinterpret_cast<std::byte*>(row.data()), DType::kF32, 1, 2 * count);
    MatrixView out = both;
    out.columns = count;
    gate_rows(*stream, {.activation = Activation::kSilu, .in = both, .out = out});
    for (size_t i = 0; i < in.size(); ++i) {
      const double x = in[i], expected = x / (1 + std::exp(-x));
      INFO("SiLU of " << x << " is " << row[i] << ", expected " << expected);
      if (x == kInfinity) {
        CHECK(row[i] == kInfinity);
      } else {
        // The power counts as 0 below e^-87.
        CHECK(std::abs(row[i] - expected) <= 5e-7 * std::abs(expected) + 1e-35);
      }
    }
  });
}

TEST_CASE("the gate of a large negative number is zero, and NaN stays") {
  for (const auto& device : test::test_devices()) {
    const auto stream = device->new_stream("test");
    const DeviceArray<float> x(*device, *stream, {-1e30f, -200.0f, NAN, 1.0f, 2.0f, 3.0f});
    const MatrixView both = x.matrix(1, 6);
    MatrixView out = both;
    out.columns = 3;
    gate_rows(*stream, {.in = both, .out = out});
    const auto found = x.read();
    CHECK(std::abs(found[0]) < 1e-6f);
    CHECK(std::abs(found[1]) < 1e-6f);
    CHECK(std::isnan(found[2]));
  }
}

}  // namespace
}  // namespace spillway::gate_test
