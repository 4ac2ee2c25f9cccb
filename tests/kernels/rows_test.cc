// The ops that work row by row, on every device, against their scalar definition
// (tests/support/scalar_ops.h), on shapes that are no multiple of anything.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "kernels/ops.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::rows_test {
namespace {

using test::DeviceArray;
using test::DeviceMatrix;
using test::PackedMatrix;
using test::random_floats;
using test::relative_error;

constexpr double kF32Error = 2e-5;  // Of the largest value

TEST_CASE("normalize agrees with its definition", "[sanitizer]") {
  const auto kind = GENERATE(NormKind::kLayerNorm, NormKind::kRmsNorm);
  const auto affine = GENERATE(true, false);
  const int64_t columns = GENERATE(1, 7, 64, 1000, 2049);
  constexpr int64_t kRows = 37;
  for (const auto& device : test::test_devices()) {
    INFO(device->name() << ", columns " << columns);
    const auto stream = device->new_stream("test");
    const auto in = random_floats(kRows * columns, 11, 3.0f);
    const auto weight = affine ? random_floats(columns, 12) : std::vector<float>();
    const auto bias = affine ? random_floats(columns, 13) : std::vector<float>();
    const DeviceArray<float> x(*device, *stream, in), w(*device, *stream, weight),
        b(*device, *stream, bias), out(*device, *stream, std::vector<float>(in.size()));
    const NormArgs args{.kind = kind,
                        .epsilon = 1e-5f,
                        .in = x.matrix(kRows, columns),
                        .weight = affine ? w.data() : nullptr,
                        .bias = affine ? b.data() : nullptr,
                        .out = out.matrix(kRows, columns)};
    normalize(*stream, args);
    const auto expected = scalar::normalize(kind, 1e-5f, in, weight, bias, kRows, columns);
    CHECK(relative_error(out.read(), expected) < kF32Error);
    NormArgs in_place = args;
    in_place.out = x.matrix(kRows, columns);
    normalize(*stream, in_place);
    CHECK(x.read() == out.read());
  }
}

TEST_CASE("convert_rows rounds to nearest, rows apart in memory", "[sanitizer]") {
  const auto dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF16);
  constexpr int64_t kRows = 5, kColumns = 129, kStride = 200;
  for (const auto& device : test::test_devices()) {
    if (dtype == DType::kF16 && device->kind() == DeviceKind::kCpu) continue;
    INFO(device->name() << ", " << dtype_name(dtype));
    const auto stream = device->new_stream("test");
    const auto in = random_floats(kRows * kStride, 15);
    const DeviceArray<float> x(*device, *stream, in);
    const size_t bytes = static_cast<size_t>(kRows * kColumns) * dtype_bytes(dtype);
    const DeviceArray<std::byte> out(*device, *stream, std::vector<std::byte>(bytes));
    convert_rows(*stream, {.in = {reinterpret_cast<const std::byte*>(x.data()), DType::kF32, kRows,
                                  kColumns, kStride},
                           .out = dense_matrix(out.data(), dtype, kRows, kColumns)});
    std::vector<float> dense;
    for (int64_t row = 0; row < kRows; ++row) {
      dense.insert(dense.end(), in.begin() + row * kStride, in.begin() + row * kStride + kColumns);
    }
    CHECK(out.read() == test::bytes_of(dtype, dense));
  }
}

TEST_CASE("convert_rows copies rows of one format, apart in memory", "[sanitizer]") {
  const auto dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF16);
  constexpr int64_t kRows = 5, kColumns = 67, kInStride = 80, kOutStride = 150;
  for (const auto& device : test::test_devices()) {
    if (dtype == DType::kF16 && device->kind() == DeviceKind::kCpu) continue;
    INFO(device->name() << ", " << dtype_name(dtype));
    const auto stream = device->new_stream("test");
    const size_t number = dtype_bytes(dtype);
    // Any bits, NaN among them.
    std::vector<std::byte> in(static_cast<size_t>(kRows * kInStride) * number);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i * 37 + i / 256);
    const std::vector<std::byte> before(static_cast<size_t>(kRows * kOutStride) * number,
                                        std::byte{0x5a});
    const DeviceArray<std::byte> x(*device, *stream, in), out(*device, *stream, before);
    convert_rows(*stream, {.in = {x.data(), dtype, kRows, kColumns, kInStride},
                           .out = {out.data(), dtype, kRows, kColumns, kOutStride}});
    std::vector<std::byte> expected = before;
    for (int64_t row = 0; row < kRows; ++row) {
      const auto from = static_cast<ptrdiff_t>(row * kInStride) * static_cast<ptrdiff_t>(number);
      const auto to = static_cast<ptrdiff_t>(row * kOutStride) * static_cast<ptrdiff_t>(number);
      std::copy_n(in.begin() + from, static_cast<size_t>(kColumns) * number, expected.begin() + to);
    }
    CHECK(out.read() == expected);
  }
}

TEST_CASE("normalize writes the format of activations", "[sanitizer]") {
  const auto dtype = GENERATE(DType::kBF16, DType::kF16);
  constexpr int64_t kRows = 3, kColumns = 77;
  for (const auto& device : test::test_devices()) {
    if (dtype == DType::kF16 && device->kind() == DeviceKind::kCpu) continue;
    const auto stream = device->new_stream("test");
    const auto in = random_floats(kRows * kColumns, 16);
    const DeviceArray<float> x(*device, *stream, in),
        wide(*device, *stream, std::vector<float>(in.size()));
    const DeviceArray<std::byte> out(*device, *stream,
                                     std::vector<std::byte>(in.size() * dtype_bytes(dtype)));
    normalize(*stream, {.in = x.matrix(kRows, kColumns), .out = wide.matrix(kRows, kColumns)});
    normalize(*stream, {.in = x.matrix(kRows, kColumns),
                        .out = dense_matrix(out.data(), dtype, kRows, kColumns)});
    CHECK(out.read() == test::bytes_of(dtype, wide.read()));
  }
}

TEST_CASE("expand_rows gives quantised rows in any format", "[sanitizer]") {
  const auto quantized = GENERATE(Format::kQ4, Format::kQ4_1, Format::kQ8_1, Format::kQ8);
  const int64_t columns = GENERATE(37, 64, 200);
  const auto format = GENERATE(DType::kF32, DType::kBF16, DType::kF16);
  constexpr int64_t kRows = 150;
  const PackedMatrix packed(MatrixLayout::kRows, quantized, random_floats(kRows * columns, 14),
                            kRows, columns, 64);
  for (const auto& device : test::test_devices()) {
    INFO(device->name() << ", " << format_name(quantized) << ", " << dtype_name(format)
                        << ", columns " << columns);
    const auto stream = device->new_stream("test");
    const DeviceMatrix there(*device, *stream, packed);
    const DeviceArray<std::byte> out(
        *device, *stream,
        std::vector<std::byte>(static_cast<size_t>(kRows * columns) * dtype_bytes(format)));
    expand_rows(*stream,
                {.from = there.matrix(), .out = dense_matrix(out.data(), format, kRows, columns)});
    CHECK(out.read() == test::bytes_of(format, packed.rounded()));
  }
}

TEST_CASE("gather_rows reads any slab and format", "[sanitizer]") {
  const auto format = GENERATE(from_range(std::begin(kFormats), std::end(kFormats)));
  const int64_t kColumns = GENERATE(37, 64, 200);
  constexpr int64_t kRows = 300;
  const PackedMatrix table(MatrixLayout::kRows, format, random_floats(kRows * kColumns, 14), kRows,
                           kColumns, 64);
  const std::vector<int32_t> rows = {0, 299, 64, 63, 128, 64};
  const auto count = static_cast<int64_t>(rows.size());
  for (const auto& device : test::test_devices()) {
    INFO(device->name() << ", " << format_name(format) << ", columns " << kColumns);
    const auto stream = device->new_stream("test");
    const DeviceMatrix on_device(*device, *stream, table);
    const DeviceArray<float> out(*device, *stream,
                                 std::vector<float>(static_cast<size_t>(count * kColumns), 1.0f));
    for (const bool accumulate : {false, true}) {
      gather_rows(*stream, {.table = on_device.matrix(),
                            .rows = rows,
                            .scale = accumulate ? 1.0f : 0.5f,
                            .out = out.matrix(count, kColumns),
                            .accumulate = accumulate});
      const float times = accumulate ? 1.5f : 0.5f;
      const std::vector<float> got = out.read();
      for (size_t i = 0; i < got.size(); ++i) {
        const auto row = static_cast<size_t>(rows[i / kColumns]);
        CHECK(got[i] == times * table.rounded()[row * kColumns + i % kColumns]);
      }
    }
  }
}

}  // namespace
}  // namespace spillway::rows_test
