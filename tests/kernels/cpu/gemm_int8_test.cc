// Products with 4-bit weights by 8-bit integers, against their definition (cpu/gemm_int8.h), by
// every instruction set that this CPU has.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/base/quantized.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/gemm_int8.h"
#include "kernels/cpu/strips.h"
#include "kernels/ops.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::gemm_int8_test {
namespace {

using test::bytes_of;
using test::PackedMatrix;
using test::random_floats;
using test::relative_error;

// What the product makes of activations: bytes times the scale of their group.
std::vector<float> rounded_to_bytes(Format format, const std::vector<float>& in, int64_t columns) {
  const int64_t group = format_traits(format).group;
  std::vector<float> out(in.size());
  const auto rows = static_cast<int64_t>(in.size()) / columns;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < columns; first += group) {
      const int64_t end = std::min(columns, first + group);
      float largest = 0;
      for (int64_t i = first; i < end; ++i) {
        largest = std::max(largest, std::fabs(in[static_cast<size_t>(row * columns + i)]));
      }
      for (int64_t i = first; i < end; ++i) {
        const auto at = static_cast<size_t>(row * columns + i);
        if (largest >= 1e-30f) {
          out[at] = std::nearbyint(in[at] * (127 / largest)) * (largest / 127);
        }
      }
    }
  }
  return out;
}

std::vector<const cpu::Int8Bodies*> all_bodies() {
  std::vector<const cpu::Int8Bodies*> found;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) found.push_back(&cpu::kInt8Avx2);
  if (__builtin_cpu_supports("avx512vnni") != 0) found.push_back(&cpu::kInt8Vnni);
#endif
  return found;
}

// Sixty-four outputs, by one instruction set.
std::vector<float> tile(const cpu::Int8Bodies& bodies, const std::vector<std::byte>& in, DType type,
                        int64_t rows, int64_t columns, const PackedMatrix& w) {
  const Format format = w.matrix().format;
  std::vector<uint32_t> quads(static_cast<size_t>(rows * cpu::int8_quads(format, columns)));
  std::vector<float> scales(static_cast<size_t>(rows * cpu::int8_scales(format, columns)));
  const cpu::Int8Strips strips{quads.data(), scales.data()};
  const cpu::Strips cut(rows, bodies.strip_rows);
  for (int64_t i = 0; i < cut.count(); ++i) {
    const int64_t row = cut.first(i);
    bodies.pack(format, in.data() + static_cast<size_t>(row * columns) * dtype_bytes(type), type,
                columns, cut.height(i), columns,
                {strips.quads + row * cpu::int8_quads(format, columns),
                 strips.scales + row * cpu::int8_scales(format, columns)});
  }
  alignas(64) float out[cpu::kGemmRowsMax * cpu::kGemmColumns];
  bodies.multiply(format, strips, rows, columns, w.matrix().slabs[0].data, out);
  return {out, out + rows * cpu::kGemmColumns};
}

TEST_CASE("products by 8-bit integers agree with their definition, by every instruction set") {
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1);
  const int64_t columns = GENERATE(1, 60, 64, 130, 1100);
  const int64_t rows = GENERATE(1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 24, 31, 95, 96);
  const DType type = GENERATE(DType::kF32, DType::kBF16);
  const auto bytes = bytes_of(type, random_floats(rows * columns, 1));
  const auto in = test::floats_of(type, bytes);
  const PackedMatrix w(MatrixLayout::kPanels16, format,
                       random_floats(cpu::kGemmColumns * columns, 2), cpu::kGemmColumns, columns,
                       64);
  const auto expected = scalar::linear(rounded_to_bytes(format, in, columns), w.rounded(), {}, {},
                                       Activation::kNone, rows, cpu::kGemmColumns, columns);
  std::vector<float> first;
  for (const cpu::Int8Bodies* bodies : all_bodies()) {
    const auto got = tile(*bodies, bytes, type, rows, columns, w);
    INFO("rows " << rows << ", columns " << columns << ", strips of " << bodies->strip_rows);
    CHECK(relative_error(got, expected) < 1e-5);
    // Instruction sets agree to the bit.
    if (first.empty()) first = got;
    CHECK(got == first);
  }
}

// Of the largest output; 8 bits keep about 0.4 % of a number.
TEST_CASE("8-bit activations cost less than 4-bit weights") {
  constexpr int64_t kRows = 20, kColumns = 512;
  const auto in = random_floats(kRows * kColumns, 1);
  const auto weights = random_floats(cpu::kGemmColumns * kColumns, 2);
  const PackedMatrix w(MatrixLayout::kPanels16, Format::kQ4, weights, cpu::kGemmColumns, kColumns,
                       64);
  const auto product = [&](const std::vector<float>& a, const std::vector<float>& b) {
    return scalar::linear(a, b, {}, {}, Activation::kNone, kRows, cpu::kGemmColumns, kColumns);
  };
  const auto exact = product(in, weights), of_weights = product(in, w.rounded());
  for (const cpu::Int8Bodies* bodies : all_bodies()) {
    const auto got = tile(*bodies, bytes_of(DType::kF32, in), DType::kF32, kRows, kColumns, w);
    CHECK(relative_error(got, of_weights) < 0.2 * relative_error(of_weights, exact));
  }
}

TEST_CASE("what is no number stays none in 8-bit products, in its own row alone") {
  constexpr int64_t kRows = 5, kColumns = 100;
  const float bad =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
               -std::numeric_limits<float>::infinity());
  auto in = random_floats(kRows * kColumns, 1);
  const PackedMatrix w(MatrixLayout::kPanels16, Format::kQ4,
                       random_floats(cpu::kGemmColumns * kColumns, 2), cpu::kGemmColumns, kColumns,
                       64);
  for (const cpu::Int8Bodies* bodies : all_bodies()) {
    const auto clean = tile(*bodies, bytes_of(DType::kF32, in), DType::kF32, kRows, kColumns, w);
    auto dirty_in = in;
    dirty_in[2 * kColumns + 70] = bad;
    const auto dirty =
        tile(*bodies, bytes_of(DType::kF32, dirty_in), DType::kF32, kRows, kColumns, w);
    for (int64_t i = 0; i < kRows * cpu::kGemmColumns; ++i) {
      const auto at = static_cast<size_t>(i);
      if (i / cpu::kGemmColumns == 2) {
        REQUIRE(!std::isfinite(dirty[at]));
      } else {
        REQUIRE(dirty[at] == clean[at]);
      }
    }
  }
}

TEST_CASE("groups of zeros and of the smallest numbers are zero in 8-bit products") {
  constexpr int64_t kColumns = 128;
  std::vector<float> in(kColumns, 0.0f);
  std::fill(in.begin() + 64, in.end(), 1e-38f);
  const PackedMatrix w(MatrixLayout::kPanels16, Format::kQ4,
                       random_floats(cpu::kGemmColumns * kColumns, 2), cpu::kGemmColumns, kColumns,
                       64);
  for (const cpu::Int8Bodies* bodies : all_bodies()) {
    const auto got = tile(*bodies, bytes_of(DType::kF32, in), DType::kF32, 1, kColumns, w);
    CHECK(std::all_of(got.begin(), got.end(), [](float x) { return x == 0; }));
  }
}

TEST_CASE("linear on a CPU asked for 8-bit products rounds activations for 4-bit weights alone") {
  auto opened = open_cpu_device(2, CpuMatmul::kInt8);
  if (!cpu::has_int8()) {
    CHECK(opened.status().code() == Code::kInvalidArgument);
    return;
  }
  const auto device = std::move(opened).value();
  const auto stream = device->new_stream("test");
  constexpr int64_t kRows = 110, kOutputs = 150, kInputs = 330;
  const Format format = GENERATE(Format::kF32, Format::kBF16, Format::kF16, Format::kQ4,
                                 Format::kQ4_1, Format::kQ8_1);
  const DType in_format = device->activation_dtype(format);
  constexpr int64_t kStride = kInputs + 16;  // Rows are apart
  auto bytes = bytes_of(in_format, random_floats(kRows * kStride, 1));
  const auto all = test::floats_of(in_format, bytes);
  std::vector<float> in;
  for (int64_t row = 0; row < kRows; ++row) {
    in.insert(in.end(), all.begin() + row * kStride, all.begin() + row * kStride + kInputs);
  }
  const PackedMatrix w(device->matrix_layout(format), format, random_floats(kOutputs * kInputs, 2),
                       kOutputs, kInputs, 64);
  const auto bias = random_floats(kOutputs, 3);
  const auto run = [&](int64_t first, int64_t rows) {
    ConstMatrixView view = dense_matrix(bytes.data(), in_format, kRows, kStride);
    view.columns = kInputs;
    view.data = view.row(first);
    view.rows = rows;
    std::vector<float> out(static_cast<size_t>(rows * kOutputs));
    linear(*stream, {.in = view,
                     .weight = w.matrix(),
                     .bias = bias.data(),
                     .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kF32,
                                         rows, kOutputs)});
    return out;
  };
  const auto whole = run(0, kRows);
  const auto expected = [&](const std::vector<float>& a) {
    return scalar::linear(a, w.rounded(), bias, {}, Activation::kNone, kRows, kOutputs, kInputs);
  };
  const bool rounds = cpu::takes_int8(format);
  CHECK(relative_error(whole, expected(rounds ? rounded_to_bytes(format, in, kInputs) : in)) <
        2e-5);
  if (rounds) CHECK(relative_error(whole, expected(in)) > 1e-4);
  // A row does not depend on its batch.
  for (const int64_t rows : {1, 3, 4, 7, 12, 13, 50, 97}) {
    const auto part = run(9, rows);
    CHECK(std::equal(part.begin(), part.end(), whole.begin() + 9 * kOutputs));
  }
}

}  // namespace
}  // namespace spillway::gemm_int8_test
