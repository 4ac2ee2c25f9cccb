// What linear layers of the CPU promise beyond their definition (linear_test.cc): NaN stays in its
// row, rows do not depend on their batch, bfloat16 is rounded to nearest.
#include "kernels/ops.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/packed_matrix.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::ops_test {
namespace {

using test::PackedMatrix;
using test::random_floats;

std::byte* bytes_of(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

MatrixView view(std::vector<float>& values, int64_t rows, int64_t columns) {
  return dense_matrix(bytes_of(values), DType::kF32, rows, columns);
}

// Two threads, so that work is really split.
struct CpuFixture {
  CpuFixture() : device(open_cpu_device(2).value()), stream(device->new_stream("test")) {}
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};

TEST_CASE("NaN passes through every activation") {
  const auto activation = GENERATE(Activation::kNone, Activation::kRelu, Activation::kGelu,
                                   Activation::kGeluTanh, Activation::kSilu);
  const auto device = open_cpu_device(2, CpuMatmul::kPanels).value();
  const auto stream = device->new_stream("test");
  constexpr int64_t kRows = 3, kOutputs = 70, kInputs = 64;
  auto in = random_floats(kRows * kInputs, 1);
  in[kInputs + 7] = std::nanf("");  // Of row 1
  const PackedMatrix w(device->matrix_layout(Format::kF32), Format::kF32,
                       random_floats(kOutputs * kInputs, 2), kOutputs, kInputs, 128);
  auto bias = random_floats(kOutputs, 3);
  bias[5] = std::nanf("");
  std::vector<float> out(kRows * kOutputs);
  const LinearArgs args{.in = view(in, kRows, kInputs),
                        .weight = w.matrix(),
                        .bias = bias.data(),
                        .activation = activation,
                        .out = view(out, kRows, kOutputs)};
  linear(*stream, args);
  CHECK(stream->record().wait().ok());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kOutputs; ++i) {
      INFO(activation_name(activation) << ", row " << row << ", output " << i);
      CHECK(std::isnan(out[static_cast<size_t>(row * kOutputs + i)]) == (row == 1 || i == 5));
    }
  }
}

TEST_CASE("a row of linear does not depend on its batch") {
  const auto products =
      GENERATE(CpuMatmul::kPanels, CpuMatmul::kBf16Dot, CpuMatmul::kTiles, CpuMatmul::kInt8);
  const auto format = GENERATE(from_range(std::begin(kFormats), std::end(kFormats)));
  if (products == CpuMatmul::kInt8 && !takes_int8(format)) return;
  auto opened = open_cpu_device(2, products);
  if (products == CpuMatmul::kInt8 && !opened.ok()) return;  // A CPU without them
  const auto device = std::move(opened).value();
  const auto stream = device->new_stream("test");
  constexpr int64_t kRows = 230, kOutputs = 192;
  const int64_t inputs = GENERATE(1100, 515, 4100);
  if (!test::thorough() && inputs != 515) return;
  const DType in_format = device->activation_dtype(format);
  auto in = test::bytes_of(in_format, random_floats(kRows * inputs, 5));
  const ConstMatrixView all = dense_matrix(in.data(), in_format, kRows, inputs);
  const PackedMatrix w(device->matrix_layout(format), format, random_floats(kOutputs * inputs, 6),
                       kOutputs, inputs, 64);
  std::vector<float> whole(kRows * kOutputs);
  linear(*stream, {.in = all, .weight = w.matrix(), .out = view(whole, kRows, kOutputs)});
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 12, 31, 64, 65, 96, 97, 129}) {
    for (int64_t first : {int64_t{0}, int64_t{41}, kRows - rows}) {
      std::vector<float> part(static_cast<size_t>(rows * kOutputs));
      ConstMatrixView some = all;
      some.data = all.row(first);
      some.rows = rows;
      linear(*stream, {.in = some, .weight = w.matrix(), .out = view(part, rows, kOutputs)});
      INFO("rows " << rows << " from " << first << ", " << format_name(format));
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + first * kOutputs));
    }
  }
}

// Products that are one weight each, or its opposite, so that what is rounded is known to the bit.
TEST_CASE_METHOD(CpuFixture, "linear writes bfloat16 rounded to nearest, ties to even") {
  constexpr std::pair<float, uint16_t> kRounded[] = {
      {0x1p+0f, 0x3f80},        {0x1.01p+0f, 0x3f80},  // A tie: the even one is below,
      {0x1.03p+0f, 0x3f82},                            // above,
      {0x1.ffp+0f, 0x4000},                            // above and a power of two on.
      {0x1.00fffep+0f, 0x3f80}, {0x1.010002p+0f, 0x3f81},  {0x1.02fffep+0f, 0x3f81},
      {0x1.01p-10f, 0x3a80},    {0x1.030002p-10f, 0x3a82}, {0x1.01p+100f, 0x7180},
      {0x1p-126f, 0x0080},      {0x1.fffffep+127f, 0x7f80}};  // The largest becomes infinite.
  constexpr int64_t kOutputs = 70, kInputs = 40;
  std::vector<float> weights(kOutputs * kInputs);
  for (size_t row = 0; row < kOutputs; ++row) {
    weights[row * kInputs] = kRounded[row % std::size(kRounded)].first;
  }
  const PackedMatrix w(MatrixLayout::kPanels16, Format::kF32, weights, kOutputs, kInputs, 128);
  std::vector<float> in(3 * kInputs);
  in[0] = in[2 * kInputs] = 1;
  in[kInputs] = -1;
  std::vector<uint16_t> out(3 * kOutputs);
  linear(*stream, {.in = view(in, 3, kInputs),
                   .weight = w.matrix(),
                   .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kBF16, 3,
                                       kOutputs)});
  for (size_t row = 0; row < kOutputs; ++row) {
    const auto [value, bits] = kRounded[row % std::size(kRounded)];
    INFO("output " << row << ", " << value);
    CHECK(out[row] == bits);
    CHECK(out[kOutputs + row] == (bits | 0x8000));
    CHECK(out[2 * kOutputs + row] == bits);
  }
}

}  // namespace
}  // namespace spillway::ops_test
