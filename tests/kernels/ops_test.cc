// What linear layers of the CPU promise beyond their definition (linear_test.cc): oneDNN's products
// agree with ours, rows do not depend on their batch, bfloat16 is rounded to nearest.
#include "kernels/ops.h"

#include <catch2/catch.hpp>

#include "kernels/cpu/onednn.h"
#include "tests/support/packed_matrix.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"

namespace spillway {
namespace {

using test::PackedMatrix;
using test::random_floats;
using test::relative_error;

constexpr double kF32Error = 2e-5;  // Of the largest value; sums of up to 2,100 terms.

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

struct LinearCase {
  int64_t rows, outputs, inputs, slab_rows;
};

TEST_CASE_METHOD(CpuFixture, "linear on oneDNN agrees with its definition") {
  // The path of CPUs with fast bf16; its f32 body runs everywhere, if slowly.
  const auto c =
      GENERATE(LinearCase{1, 64, 64, 64}, LinearCase{70, 130, 64, 64}, LinearCase{5, 129, 515, 64});
  const auto activation = GENERATE(Activation::kNone, Activation::kRelu, Activation::kGelu);
  auto in = random_floats(c.rows * c.inputs, 1);
  const PackedMatrix w(MatrixLayout::kPanels64, DType::kF32, random_floats(c.outputs * c.inputs, 2),
                       c.outputs, c.inputs, c.slab_rows);
  const auto bias = random_floats(c.outputs, 3);
  auto out = random_floats(c.rows * c.outputs, 4);
  const auto before = out;
  cpu::OneDnn onednn(2, true);
  LinearArgs args{.in = view(in, c.rows, c.inputs),
                  .weight = w.matrix(),
                  .bias = bias.data(),
                  .activation = activation,
                  .out = view(out, c.rows, c.outputs)};
  onednn.linear(args);
  auto expected =
      scalar::linear(in, w.rounded(), bias, {}, activation, c.rows, c.outputs, c.inputs);
  CHECK(relative_error(out, expected) < kF32Error);
  if (activation != Activation::kNone) return;
  out = before;
  args.accumulate = true;
  onednn.linear(args);
  expected = scalar::linear(in, w.rounded(), bias, before, activation, c.rows, c.outputs, c.inputs);
  CHECK(relative_error(out, expected) < kF32Error);
}

TEST_CASE("a row of linear does not depend on its batch") {
  const auto products = GENERATE(CpuProducts::kPanels, CpuProducts::kPairs, CpuProducts::kOneDnn);
  const auto format = GENERATE(DType::kF32, DType::kBF16, DType::kF16, DType::kQ4);
  const auto device = open_cpu_device(2, products).value();
  const auto stream = device->new_stream("test");
  constexpr int64_t kRows = 230, kOutputs = 192;
  const int64_t inputs = GENERATE(1100, 515);
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
      INFO("rows " << rows << " from " << first << ", " << dtype_name(format));
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + first * kOutputs));
    }
  }
}

TEST_CASE_METHOD(CpuFixture, "linear writes bfloat16 rounded to nearest") {
  auto in = random_floats(3 * 40, 7);
  const PackedMatrix w(MatrixLayout::kPanels16, DType::kF32, random_floats(70 * 40, 8), 70, 40,
                       128);
  std::vector<float> full(3 * 70);
  std::vector<uint16_t> out(3 * 70);
  linear(*stream, {.in = view(in, 3, 40), .weight = w.matrix(), .out = view(full, 3, 70)});
  linear(*stream,
         {.in = view(in, 3, 40),
          .weight = w.matrix(),
          .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kBF16, 3, 70)});
  for (size_t i = 0; i < out.size(); ++i) CHECK(out[i] == f32_to_bf16(full[i]));
}

}  // namespace
}  // namespace spillway
