#include "kernels/base/format.h"

#include <catch2/catch.hpp>

#include "kernels/base/quantized.h"

namespace spillway::format_test {
namespace {

TEST_CASE("a format is found by its name, and all names are listed as messages have them") {
  for (const Format format : kFormats) CHECK(format_of_name(format_name(format)) == format);
  for (const char* name : {"", "i32", "q8_0", "F32", "q4 "}) CHECK_FALSE(format_of_name(name));
  CHECK(format_names("|") == "f32|bf16|f16|q4|q4_1|q8_1|q8");
  CHECK(format_names(", ", " or ") == "f32, bf16, f16, q4, q4_1, q8_1 or q8");
  CHECK(format_names("|", {}, true) == "f32|bf16|f16|q4|q8");
}

TEST_CASE("a plain format stores its element type, a quantised one none") {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Format format = plain_format(type);
    CHECK_FALSE(is_quantized(format));
    CHECK(element_of(format) == type);
    CHECK(unpacked_type(format) == type);
    CHECK(format_name(format) == dtype_name(type));
    CHECK(format_row_bytes(format, 77) == 77 * dtype_bytes(type));
    CHECK(gpu_activation_dtype(format, false) == type);
  }
  CHECK(is_quantized(Format::kQ4));
  CHECK(is_grouped(Format::kQ4));
  CHECK(is_quantized(Format::kQ8));
  CHECK_FALSE(is_grouped(Format::kQ8));
  CHECK_FALSE(is_grouped(Format::kBF16));
  CHECK(unpacked_type(Format::kQ4) == DType::kF32);
  CHECK(gpu_activation_dtype(Format::kQ4, true) == DType::kBF16);
  CHECK(gpu_activation_dtype(Format::kQ4, false) == DType::kF16);
}

TEST_CASE("quantised rows are packed and unpacked by format") {
  const std::vector<float> values = {-1, 2, 0.5f, 14};
  std::vector<std::byte> row(format_row_bytes(Format::kQ4, 4)), expected(row.size());
  QuantError error;
  pack_quantized_row(Format::kQ4, values, row.data(), &error);
  pack_quantized_row(Format::kQ4, values, expected.data());
  CHECK(row == expected);
  CHECK(error.error_max == 0.5);
  std::vector<float> back(4);
  unpack_quantized_row(Format::kQ4, row.data(), back);
  CHECK(back[3] == 14);
}

}  // namespace
}  // namespace spillway::format_test
