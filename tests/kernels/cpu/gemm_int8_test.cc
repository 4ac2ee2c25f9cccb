// Products with 4-bit and 8-bit weights by 8-bit integers, against their definition
// (cpu/gemm_int8.h), by every instruction set that this CPU has.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/base/quantized.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/gemm_int8.h"
#include "kernels/cpu/strips.h"
#include "kernels/input_hadamard.h"
#include "kernels/ops.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/seed.h"
#include "tests/support/taken_parts.h"
#include "tests/support/test_devices.h"

namespace spillway::gemm_int8_test {
namespace {

using test::bytes_of;
using test::PackedMatrix;
using test::random_floats;
using test::relative_error;

// What the product makes of activations: bytes times the scale of their stretch.
std::vector<float> rounded_to_bytes(const std::vector<float>& in, int64_t columns) {
  std::vector<float> out(in.size());
  const auto rows = static_cast<int64_t>(in.size()) / columns;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < columns; first += kStretch) {
      const int64_t end = std::min(columns, first + kStretch);
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
  if (cpu::has_avx_vnni()) found.push_back(&cpu::kInt8AvxVnni);
  if (__builtin_cpu_supports("avx512vnni") != 0) {
    found.push_back(&cpu::kInt8Vnni);
    if (cpu::has_amx_int8()) found.push_back(&cpu::kInt8Amx);
  }
#endif
  return found;
}

// How a tile multiplies: by the fused kernels, or by expanded panels that are kept for the next
// blocks of rows or not.
enum class How { kFused, kExpanded, kKept };

// Sixty-four outputs, by one instruction set.
std::vector<float> tile(const cpu::Int8Bodies& bodies, const std::vector<std::byte>& in, DType type,
                        int64_t rows, int64_t columns, const std::byte* packed, Format format,
                        How how, std::vector<cpu::ExpandedPair>* pairs = nullptr,
                        bool hadamard = false) {
  const int64_t row_quads = cpu::int8_row_quads(bodies, format, columns);
  constexpr size_t kBeyond = 16;  // Matrix units may read them.
  std::vector<uint32_t> quads(static_cast<size_t>(rows * row_quads) + kBeyond);
  std::vector<float> scales(static_cast<size_t>(rows * cpu::int8_scales(format, columns)));
  const cpu::Int8Strips strips{quads.data(), scales.data()};
  const cpu::Strips cut(rows, bodies.strip_rows);
  for (int64_t i = 0; i < cut.count(); ++i) {
    const int64_t row = cut.first(i);
    bodies.pack(
        format, in.data() + static_cast<size_t>(row * columns) * dtype_bytes(type), type, columns,
        cut.height(i), columns, hadamard,
        {strips.quads + row * row_quads, strips.scales + row * cpu::int8_scales(format, columns)});
  }
  alignas(64) float out[cpu::kGemmRowsMax * cpu::kGemmColumns];
  if (!is_grouped(format)) how = How::kFused;
  std::vector<cpu::ExpandedPair> expanded(
      static_cast<size_t>(2 * ((columns + kStretch - 1) / kStretch)));
  cpu::Int8Panels panels{.packed = packed};
  if (how != How::kFused) panels.expanded = expanded.data();
  panels.kept = how == How::kKept;
  test::TakenParts taken(out, rows);
  const auto take = [&](auto... part) { taken(part...); };
  const std::vector<std::byte> memory(1 << 15);  // Where outputs would go
  bodies.multiply(format, strips, rows, columns, panels, out,
                  cpu::TileTaker::of(take, {memory.data(), 256, 4, cpu::kGemmColumns}));
  taken.check(1);
  if (panels.kept || !is_grouped(format)) {  // The next block takes what this one left.
    const std::vector<float> before = taken.values();
    panels.filled = true;
    bodies.multiply(format, strips, rows, columns, panels, out, cpu::TileTaker::of(take));
    taken.check(2);
    CHECK(std::memcmp(before.data(), taken.values().data(), before.size() * sizeof(float)) == 0);
  }
  if (pairs != nullptr) *pairs = expanded;
  return taken.values();
}

std::vector<float> tile(const cpu::Int8Bodies& bodies, const std::vector<std::byte>& in, DType type,
                        int64_t rows, int64_t columns, const PackedMatrix& w,
                        How how = How::kFused) {
  return tile(bodies, in, type, rows, columns, w.matrix().slabs[0].data, w.matrix().format, how,
              nullptr, w.matrix().hadamard);
}

TEST_CASE("products by 8-bit integers agree with their definition, by every instruction set") {
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8);
  const int64_t columns = GENERATE(1, 60, 64, 130, 1100, 1900);
  const int64_t rows = GENERATE(1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 24, 31, 95, 96);
  const DType type = GENERATE(DType::kF32, DType::kBF16);
  const bool hadamard = rows % 2 == 0;
  const auto bytes = bytes_of(type, random_floats(rows * columns, 1));
  const auto given = test::floats_of(type, bytes);
  const auto in = hadamard ? scalar::hadamard(given, columns, true) : given;
  const PackedMatrix w(MatrixLayout::kPanels16, format,
                       random_floats(cpu::kGemmColumns * columns, 2), cpu::kGemmColumns, columns,
                       64, hadamard);
  const auto expected = scalar::linear(rounded_to_bytes(in, columns), w.rounded(), {}, {},
                                       Activation::kNone, rows, cpu::kGemmColumns, columns);
  std::vector<float> first;
  for (const cpu::Int8Bodies* bodies : all_bodies()) {
    const auto got = tile(*bodies, bytes, type, rows, columns, w);
    INFO("rows " << rows << ", columns " << columns << ", strips of " << bodies->strip_rows);
    CHECK(relative_error(got, expected) < 1e-5);
    // Instruction sets agree to the bit, and so do the kernels for few and for many rows.
    if (first.empty()) first = got;
    for (const How how : {How::kFused, How::kExpanded, How::kKept}) {
      CHECK(tile(*bodies, bytes, type, rows, columns, w, how) == first);
    }
  }
}

// Groups of any integers that a byte holds, in any unit, and of a kind that none holds.
struct DrawnWeights {
  DrawnWeights(Format format, int64_t columns, uint64_t seed, double others)
      : bytes(packed_bytes(MatrixLayout::kPanels16, format, cpu::kGemmColumns, columns)) {
    std::mt19937_64 random(seed);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const int64_t group = format_traits(format).group, stretch = kStretch / group;
    int exponent = 0;
    bool other = false;
    for (int64_t row = 0; row < cpu::kGemmColumns; ++row) {
      for (int64_t g = 0; g * group < columns; ++g) {
        if (g % stretch == 0) {
          exponent = static_cast<int>(random() % 24) - 24;
          other = std::uniform_real_distribution<>()(random) < others;
        }
        const auto s = static_cast<int>(random() % 18);
        const int z = static_cast<int>(random() % static_cast<uint64_t>(256 - 15 * s)) - 128;
        GroupScale scale{f32_to_f16(std::ldexp(static_cast<float>(s), exponent)),
                         f32_to_f16(std::ldexp(static_cast<float>(z), exponent))};
        if (other) scale = {f32_to_f16(0.00173f), f32_to_f16(-0.0131f)};
        const ScaleOffsets at = scale_offsets(MatrixLayout::kPanels16, format, columns, row, g);
        std::memcpy(bytes.data() + at.scale, &scale.scale, 2);
        std::memcpy(bytes.data() + at.minimum, &scale.minimum, 2);
      }
    }
  }
  std::vector<std::byte> bytes;
};

TEST_CASE("any integers give the same bits by the fused kernels and by the tile") {
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1);
  const double others = GENERATE(0.0, 0.02);
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int turn = 0; turn < (test::thorough() ? 60 : 10); ++turn) {
    const auto columns = static_cast<int64_t>(1 + random() % 1500);
    const auto rows = static_cast<int64_t>(1 + random() % (turn % 2 == 0 ? 40 : cpu::kGemmRowsMax));
    const DrawnWeights drawn(format, columns, random(), others);
    const WeightSlab slab{drawn.bytes.data(), cpu::kGemmColumns};
    auto in = random_floats(rows * columns, random());
    // Bytes of the largest magnitude, which bring sums to their bounds.
    for (size_t i = 0; i < in.size(); ++i) {
      if (i / static_cast<size_t>(columns) % 3 == 0) in[i] = in[i] < 0 ? -1.0f : 1.0f;
    }
    const auto bytes = bytes_of(DType::kF32, in);
    INFO(columns << " columns, " << rows << " rows, " << others);
    std::vector<float> first;
    for (const cpu::Int8Bodies* bodies : all_bodies()) {
      for (const How how : {How::kFused, How::kExpanded, How::kKept}) {
        const auto got = tile(*bodies, bytes, DType::kF32, rows, columns, slab.data, format, how);
        if (first.empty()) first = got;
        REQUIRE(std::memcmp(got.data(), first.data(), got.size() * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("the weights that convert makes are expanded, those of other scales are not") {
  constexpr int64_t kColumns = 600;
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1);
  const PackedMatrix w(MatrixLayout::kPanels16, format,
                       random_floats(cpu::kGemmColumns * kColumns, 2, 0.02f), cpu::kGemmColumns,
                       kColumns, 64);
  const DrawnWeights other(format, kColumns, 3, 1.0);
  const auto in = bytes_of(DType::kF32, random_floats(kColumns, 1));
  for (const cpu::Int8Bodies* bodies : all_bodies()) {
    for (const auto& [packed, integers] :
         {std::pair(w.matrix().slabs[0].data, true), std::pair(other.bytes.data(), false)}) {
      std::vector<cpu::ExpandedPair> expanded(6);
      tile(*bodies, in, DType::kF32, 1, kColumns, packed, format, How::kKept, &expanded);
      for (const cpu::ExpandedPair& pair : expanded) CHECK(pair.integers == integers);
    }
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
  const Format format = GENERATE(Format::kQ4, Format::kQ8);
  const float bad =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
               -std::numeric_limits<float>::infinity());
  auto in = random_floats(kRows * kColumns, 1);
  const PackedMatrix w(MatrixLayout::kPanels16, format,
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

TEST_CASE("stretches of zeros and of the smallest numbers are zero in 8-bit products") {
  constexpr int64_t kColumns = 2 * kStretch;
  std::vector<float> in(kColumns, 0.0f);
  std::fill(in.begin() + kStretch, in.end(), 1e-38f);
  const PackedMatrix w(MatrixLayout::kPanels16, Format::kQ4,
                       random_floats(cpu::kGemmColumns * kColumns, 2), cpu::kGemmColumns, kColumns,
                       64);
  for (const cpu::Int8Bodies* bodies : all_bodies()) {
    const auto got = tile(*bodies, bytes_of(DType::kF32, in), DType::kF32, 1, kColumns, w);
    CHECK(std::all_of(got.begin(), got.end(), [](float x) { return x == 0; }));
  }
}

TEST_CASE("linear on a CPU asked for 8-bit products rounds activations where weights allow it") {
  auto opened = open_cpu_device(2, CpuMatmul::kInt8);
  if (!cpu::has_int8()) {
    CHECK(opened.status().code() == Code::kInvalidArgument);
    return;
  }
  const auto device = std::move(opened).value();
  const auto stream = device->new_stream("test");
  constexpr int64_t kRows = 110, kOutputs = 150, kInputs = 330;
  const Format format = GENERATE(Format::kF32, Format::kBF16, Format::kF16, Format::kQ4,
                                 Format::kQ4_1, Format::kQ8_1, Format::kQ8);
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
  const bool rounds = takes_int8(format);
  CHECK(relative_error(whole, expected(rounds ? rounded_to_bytes(in, kInputs) : in)) < 2e-5);
  if (rounds) CHECK(relative_error(whole, expected(in)) > 1e-4);
  // A row does not depend on its batch.
  for (const int64_t rows : {1, 3, 4, 7, 12, 13, 50, 97}) {
    const auto part = run(9, rows);
    CHECK(std::equal(part.begin(), part.end(), whole.begin() + 9 * kOutputs));
  }
}

TEST_CASE(
    "linear rounds activations by itself where weights were multiplied by Hadamard matrices") {
  constexpr int64_t kRows = 20, kOutputs = 70, kInputs = 330;
  const Format format = GENERATE(Format::kQ4, Format::kQ8);
  const auto product = [&](CpuMatmul how, bool hadamard) {
    const auto device = open_cpu_device(2, how).value();
    const auto stream = device->new_stream("test");
    const DType type = device->activation_dtype(format);
    const auto bytes = bytes_of(type, random_floats(kRows * kInputs, 1));
    const PackedMatrix w(device->matrix_layout(format), format,
                         random_floats(kOutputs * kInputs, 2), kOutputs, kInputs, 64, hadamard);
    std::vector<float> out(kRows * kOutputs);
    linear(*stream, {.in = dense_matrix(const_cast<std::byte*>(bytes.data()), type, kRows, kInputs),
                     .weight = w.matrix(),
                     .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kF32,
                                         kRows, kOutputs)});
    return out;
  };
  CHECK(product(CpuMatmul::kFastest, false) == product(CpuMatmul::kFloat, false));
  if (!cpu::has_int8()) return;
  for (const bool hadamard : {false, true}) {
    CHECK(product(CpuMatmul::kInt8, hadamard) != product(CpuMatmul::kFloat, hadamard));
  }
  CHECK(product(CpuMatmul::kFastest, true) == product(CpuMatmul::kInt8, true));
}

TEST_CASE("8-bit products are taken of weights made for them, and of others if asked for") {
  const auto fastest = open_cpu_device(1).value();
  for (const Format format : kFormats) {
    INFO(format_name(format));
    CHECK(fastest->in_int8(format) == (cpu::has_int8() && takes_hadamard(format)));
    CHECK_FALSE(open_cpu_device(1, CpuMatmul::kFloat).value()->in_int8(format));
    if (!cpu::has_int8()) continue;
    CHECK(open_cpu_device(1, CpuMatmul::kInt8).value()->in_int8(format) == takes_int8(format));
  }
}

}  // namespace
}  // namespace spillway::gemm_int8_test
