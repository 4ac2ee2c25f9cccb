// Status, units, number formats: the ground everything stands on.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/base/checked_math.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/base/weights.h"
#include "tests/support/tiny_shape.h"

namespace spillway::base_test {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return invalid_argument("odd");
  return value / 2;
}

Status quarter(int value, int* out) {
  SPILLWAY_ASSIGN_OR_RETURN(const int h, half(value));
  SPILLWAY_ASSIGN_OR_RETURN(*out, half(h));
  return {};
}

TEST_CASE("a status carries its code and message through the macros") {
  int out = 0;
  CHECK(quarter(8, &out).ok());
  CHECK(out == 2);
  const Status bad = quarter(6, &out);
  CHECK(bad.code() == Code::kInvalidArgument);
  CHECK(bad.at("here").message() == "here: odd");
}

TEST_CASE("sizes are read in binary and decimal units") {
  CHECK(parse_bytes("16GiB").value() == (uint64_t{16} << 30));
  CHECK(parse_bytes("1.5 KiB").value() == 1536);
  CHECK(parse_bytes("500MB").value() == 500'000'000);
  CHECK(parse_bytes("4096").value() == 4096);
  for (const char* bad :
       {"", "GiB", "-1", "1e3", "12 apples", "99999999TiB", "nan", "inf", "0x10"}) {
    INFO(bad);
    CHECK_FALSE(parse_bytes(bad).ok());
  }
}

TEST_CASE("ages are read in days or with a unit") {
  constexpr double kDay = 86400;
  CHECK(parse_age("30").value() == 30 * kDay);
  CHECK(parse_age("30d").value() == 30 * kDay);
  CHECK(parse_age("1.5 w").value() == 10.5 * kDay);
  CHECK(parse_age("12h").value() == kDay / 2);
  CHECK(parse_age("45min").value() == 2700);
  CHECK(parse_age("0s").value() == 0);
  for (const char* bad : {"", "d", "-1d", "3 months", "1e3", "5m", "nan", "inf", "99999999d"}) {
    INFO(bad);
    CHECK_FALSE(parse_age(bad).ok());
  }
}

TEST_CASE("sizes and times are written for people") {
  CHECK(format_bytes(512) == "512 B");
  CHECK(format_bytes(1536) == "1.50 KiB");
  CHECK(format_bytes(uint64_t{13} << 30) == "13.0 GiB");
  CHECK(format_seconds(0.123) == "0.12 s");
  CHECK(format_seconds(200) == "3 min 20 s");
  CHECK(format_seconds(3900) == "1 h 05 min");
  CHECK(format_age(-1) == "0 s");
  CHECK(format_age(59.7) == "60 s");
  CHECK(format_age(200) == "3 min 20 s");
  CHECK(format_age(47 * 3600) == "47 h 00 min");
  CHECK(format_age(31.4 * 86400) == "31 days");
  CHECK(format_rate(0.04512) == "0.0451");
  CHECK(format_rate(12.34) == "12.3");
  CHECK(format_rate(14239.6) == "14240");
}

TEST_CASE("every half survives the way to float and back") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half_bits = static_cast<uint16_t>(bits);
    const float value = f16_to_f32(half_bits);
    if (std::isnan(value)) {
      CHECK(std::isnan(f16_to_f32(f32_to_f16(value))));
    } else if (f32_to_f16(value) != half_bits) {
      FAIL("half " << bits);
    }
    const float brain = bf16_to_f32(half_bits);
    if (!std::isnan(brain) && f32_to_bf16(brain) != half_bits) FAIL("bf16 " << bits);
  }
}

TEST_CASE("floats round to the nearest half, ties to even") {
  CHECK(f32_to_f16(65519.0f) == 0x7bff);
  CHECK(f32_to_f16(65520.0f) == 0x7c00);
  CHECK(f32_to_f16(0x1p-25f) == 0);  // Halfway to the least subnormal: even is 0.
  CHECK(f32_to_f16(std::nextafter(0x1p-25f, 1.0f)) == 1);
  CHECK(f32_to_f16(1.0f + 0x1p-11f) == 0x3c00);  // Tie, even below.
  CHECK(f32_to_f16(1.0f + 3 * 0x1p-11f) == 0x3c02);
  CHECK(f32_to_bf16(1.0f + 0x1p-8f) == 0x3f80);
  CHECK(f32_to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
}

TEST_CASE("size arithmetic answers overflow") {
  CHECK(checked_add(UINT64_MAX, 1) == std::nullopt);
  CHECK(checked_multiply(uint64_t{1} << 32, uint64_t{1} << 32) == std::nullopt);
  CHECK(checked_multiply(1u << 31, 2) == uint64_t{1} << 32);
}

TEST_CASE("the weight list of opt-1.3b has its published size") {
  ModelShape shape = test::make_shape({.layers = 24,
                                       .hidden = 2048,
                                       .heads = 32,
                                       .mlp = 8192,
                                       .vocabulary = 50272,
                                       .positions = 2048});
  shape.position_offset = 2;
  REQUIRE(validate(shape).ok());
  CHECK(parameter_count(shape) == 1'315'758'080);
  shape.kv_heads = 5;
  CHECK_FALSE(validate(shape).ok());
}

}  // namespace
}  // namespace spillway::base_test
