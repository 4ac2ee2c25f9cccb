// Rows of 8-bit integers with one scale: the quantiser against its definition, its promises, and
// what lies in memory.
#include "kernels/base/quantized_rows.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/random_data.h"
#include "tests/support/scalar_ops.h"

namespace spillway::quantized_rows_test {
namespace {

using test::random_floats;

std::vector<std::byte> packed(const std::vector<float>& values, QuantError* error = nullptr) {
  std::vector<std::byte> row(format_row_bytes(Format::kQ8, static_cast<int64_t>(values.size())));
  pack_quantized_row(Format::kQ8, values, row.data(), error);
  return row;
}

std::vector<float> quantized(const std::vector<float>& values, QuantError* error = nullptr) {
  std::vector<float> back(values.size());
  unpack_quantized_row(Format::kQ8, packed(values, error).data(), back);
  return back;
}

TEST_CASE("a row has the scale and the codes of the definition") {
  const float deviation = GENERATE(1e-41f, 1e-30f, 0.02f, 3.0f, 1e35f);
  for (const int64_t count : {1, 2, 3, 7, 8, 9, 64, 65, 200, 4097}) {
    auto values = random_floats(count, static_cast<uint64_t>(count), deviation);
    // Some numbers lie in the middle between two codes.
    values[0] = deviation * 4 * 127;
    for (size_t i = 1; i < values.size(); i += 3)
      values[i] = deviation * (2.0f * float(i % 60) + 2);
    const scalar::Q8Row expected = scalar::q8_row(values);
    const auto row = packed(values);
    float scale;
    std::memcpy(&scale, row.data(), sizeof(scale));
    CHECK(scale == expected.scale);
    INFO("deviation " << deviation << ", count " << count);
    for (size_t i = 0; i < values.size(); ++i) {
      REQUIRE(static_cast<int8_t>(row[sizeof(scale) + i]) == expected.codes[i]);
    }
  }
}

TEST_CASE("a number is within half a step of the row's largest, which is kept") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto values = random_floats(100, seed, 0.02f);
    float most = 0;
    for (const float value : values) most = std::max(most, std::abs(value));
    const auto back = quantized(values);
    for (size_t i = 0; i < values.size(); ++i) {
      REQUIRE(std::abs(back[i] - values[i]) <= most / 127 / 2 * (1 + 1e-5f));
      if (std::abs(values[i]) == most) REQUIRE(back[i] == Approx(values[i]).epsilon(1e-6));
    }
  }
}

TEST_CASE("zeros, tiny and huge numbers behave") {
  const auto all = [](float value) { return std::vector<float>(37, value); };
  CHECK(quantized(all(0.0f)) == all(0.0f));
  CHECK(quantized(all(-0.0f)) == all(0.0f));
  CHECK(quantized(all(0.5f))[3] == Approx(0.5f));
  for (const float tiny : {1e-30f, 1e-39f, 1e-42f, std::numeric_limits<float>::denorm_min()}) {
    // A scale below float32's normal numbers has few digits.
    for (const float sign : {1.0f, -1.0f}) {
      const float back = quantized(all(sign * tiny))[0];
      CHECK(std::abs(back - sign * tiny) <= tiny);
    }
  }
  for (const float huge : {3.4e38f, std::numeric_limits<float>::max()}) {
    for (const float value : quantized(all(-huge))) {
      CHECK(std::isfinite(value));
      CHECK(value == Approx(-huge).epsilon(1e-6));
    }
  }
}

TEST_CASE("a NaN or an infinity makes its row NaN") {
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    for (const size_t at : {size_t{0}, size_t{70}, size_t{199}}) {
      auto values = random_floats(200, 3);
      values[at] = bad;
      QuantError error;
      for (const float value : quantized(values, &error)) CHECK(std::isnan(value));
      CHECK(error.value_squares == 0);
    }
  }
}

TEST_CASE("a row is its scale, its codes and zeros to a whole word, and nothing behind them") {
  CHECK(format_row_bytes(Format::kQ8, 1) == 8);
  CHECK(format_row_bytes(Format::kQ8, 4) == 8);
  CHECK(format_row_bytes(Format::kQ8, 5) == 12);
  CHECK(format_row_bytes(Format::kQ8, 64) == 68);
  CHECK(format_row_bytes(Format::kQ8, 128) == 132);
  for (int64_t count = 1; count <= 70; ++count) {
    const size_t bytes = format_row_bytes(Format::kQ8, count);
    std::vector<std::byte> row(bytes + 8, std::byte{0x5a});
    pack_quantized_row(Format::kQ8, random_floats(count, static_cast<uint64_t>(count)), row.data());
    for (size_t i = sizeof(float) + static_cast<size_t>(count); i < bytes; ++i) {
      REQUIRE(row[i] == std::byte{0});
    }
    for (size_t i = bytes; i < row.size(); ++i) REQUIRE(row[i] == std::byte{0x5a});
  }
}

TEST_CASE("a row's errors add up to those of the numbers that come back") {
  const auto values = random_floats(1000, 4, 0.02f);
  QuantError error;
  const auto back = quantized(values, &error);
  double errors = 0, squares = 0, most = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double off = std::abs(double{back[i]} - double{values[i]});
    errors += off * off;
    squares += double{values[i]} * double{values[i]};
    most = std::max(most, off);
  }
  CHECK(error.relative_rms() == Approx(std::sqrt(errors / squares)));
  CHECK(error.error_max == most);
  // A step is a 127th of the largest number, the error a step / sqrt(12).
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double step = std::max(-*low, *high) / 127.0;
  CHECK(std::sqrt(error.error_squares / 1000) == Approx(step / std::sqrt(12)).epsilon(0.1));
}

}  // namespace
}  // namespace spillway::quantized_rows_test
