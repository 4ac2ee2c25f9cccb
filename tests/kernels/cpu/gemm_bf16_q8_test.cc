// Products with 8-bit weights that have a scale an output: bit for bit those of the codes, scaled,
// on every instruction set of this CPU, and a row's bits are its own.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "kernels/cpu/gemm_bf16.h"
#include "kernels/ops.h"
#include "kernels/q8_panels.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/packed_matrix.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"

namespace spillway::gemm_bf16_q8_test {
namespace {

using test::PackedMatrix;
using test::random_floats;

constexpr int64_t kOutputs = 100;

// A matrix in 8 bits, and its codes as a matrix of numbers.
struct Weights {
  std::vector<float> values, codes, scales;

  explicit Weights(int64_t inputs) : values(random_floats(kOutputs * inputs, 7, 0.02f)) {
    for (int64_t row = 0; row < kOutputs; ++row) {
      const auto* const from = values.data() + row * inputs;
      const scalar::Q8Row found = scalar::q8_row({from, from + inputs});
      codes.insert(codes.end(), found.codes.begin(), found.codes.end());
      scales.push_back(found.scale);
    }
  }
};

std::vector<float> product(Stream& stream, const WeightMatrix& weight, DType type,
                           const std::vector<float>& in, int64_t rows) {
  auto bytes = test::bytes_of(type, in);
  std::vector<float> out(static_cast<size_t>(rows * weight.rows));
  linear(stream, {.in = dense_matrix(bytes.data(), type, rows, weight.columns),
                  .weight = weight,
                  .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kF32, rows,
                                      weight.rows)});
  return out;
}

// Compares products in `type` with those of the codes as `plain`.
void check_products(Stream& stream, DType type, Format plain, int64_t inputs) {
  const Weights weights(inputs);
  const PackedMatrix q8(MatrixLayout::kPanels16, Format::kQ8, weights.values, kOutputs, inputs, 64);
  const PackedMatrix codes(MatrixLayout::kPanels16, plain, weights.codes, kOutputs, inputs, 64);
  const auto all = random_floats(101 * inputs, 6);
  const auto whole = product(stream, q8.matrix(), type, all, 101);
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 24, 25, 96, 101}) {
    const std::vector<float> in(all.begin(), all.begin() + rows * inputs);
    const auto got = product(stream, q8.matrix(), type, in, rows);
    auto expected = product(stream, codes.matrix(), type, in, rows);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] *= weights.scales[i % static_cast<size_t>(kOutputs)];
    }
    INFO(dtype_name(type) << ", inputs " << inputs << ", rows " << rows);
    REQUIRE(got == expected);
    REQUIRE(std::memcmp(got.data(), whole.data(), got.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("a product with 8-bit rows is bit for bit that of their codes, scaled") {
  const auto device = open_cpu_device(2, CpuMatmul::kBf16Dot).value();
  const auto stream = device->new_stream("test");
  for (const int64_t inputs : {1, 7, 64, 100, 700, 4200}) {
    test::for_each_instruction_set(
        [&] { check_products(*stream, DType::kF32, Format::kF32, inputs); });
    if (cpu::has_bf16_dot()) check_products(*stream, DType::kBF16, Format::kBF16, inputs);
  }
}

TEST_CASE("what lies in the padding of 8-bit rows never counts, and damage stays in its output") {
  constexpr int64_t kFew = 20, kInputs = 70;
  const auto device = open_cpu_device(2, CpuMatmul::kBf16Dot).value();
  const auto stream = device->new_stream("test");
  auto values = random_floats(kFew * kInputs, 9);
  const PackedMatrix clean(MatrixLayout::kPanels16, Format::kQ8, values, kFew, kInputs, 64);
  const size_t bytes = packed_bytes(MatrixLayout::kPanels16, Format::kQ8, kFew, kInputs);
  std::vector<std::byte> soiled(clean.matrix().slabs[0].data, clean.matrix().slabs[0].data + bytes);
  for (int64_t row = 0; row < 64; ++row) {
    const Q8Panel panel = q8_panel(soiled.data(), kInputs, row / 16);
    if (row >= kFew) const_cast<float*>(panel.scales)[row % 16] = NAN;
    for (int64_t c = row < kFew ? kInputs : 0; c < 128; ++c) {
      const_cast<uint8_t*>(panel.codes)[c / 4 * 64 + row % 16 * 4 + c % 4] = 3;
    }
  }
  const WeightSlab slab{soiled.data(), kFew};
  WeightMatrix dirty = clean.matrix();
  dirty.slabs = {&slab, 1};
  values[3 * kInputs + 5] = INFINITY;
  const PackedMatrix damaged(MatrixLayout::kPanels16, Format::kQ8, values, kFew, kInputs, 64);
  for (const int64_t rows : {1, 13}) {
    const auto in = random_floats(rows * kInputs, 8);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      if (type == DType::kBF16 && !cpu::has_bf16_dot()) continue;
      const auto expected = product(*stream, clean.matrix(), type, in, rows);
      CHECK(product(*stream, dirty, type, in, rows) == expected);
      const auto found = product(*stream, damaged.matrix(), type, in, rows);
      for (size_t i = 0; i < found.size(); ++i) {
        const bool bad = i % static_cast<size_t>(kFew) == 3;
        REQUIRE((bad ? std::isnan(found[i]) : found[i] == expected[i]));
      }
    }
  }
}

}  // namespace
}  // namespace spillway::gemm_bf16_q8_test
