// Counting NaN and infinity, against the plain definition.
#include "offload/model_file/non_finite.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

namespace spillway::non_finite_test {
namespace {

TEST_CASE("every 16-bit pattern is counted as what it is") {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      const float value = dtype == DType::kBF16 ? bf16_to_f32(half) : f16_to_f32(half);
      const NonFinite found = count_non_finite(dtype, std::as_bytes(std::span(&half, 1)));
      if (found.nan != (std::isnan(value) ? 1 : 0) || found.inf != (std::isinf(value) ? 1 : 0)) {
        FAIL(dtype_name(dtype) << " " << bits);
      }
    }
  }
}

TEST_CASE("counts add up over long runs, at any alignment") {
  constexpr size_t kCount = 3'000'000;
  std::vector<std::byte> bytes(kCount * 4 + 3);
  const uint32_t nan = 0xffc00001;
  const uint32_t inf = 0xff800000;
  for (size_t i = 0; i < kCount; i += 1000) {
    std::memcpy(bytes.data() + 1 + i * 4, i % 2000 == 0 ? &nan : &inf, 4);
  }
  const NonFinite found = count_non_finite(DType::kF32, std::span(bytes).subspan(1));
  CHECK(found.nan == 1500);
  CHECK(found.inf == 1500);
  CHECK(count_non_finite(DType::kF32, {}).total() == 0);
}

TEST_CASE("4-bit numbers are counted by the group, without padding, in either layout") {
  constexpr int64_t kRows = 70, kColumns = 100;
  std::vector<float> values(static_cast<size_t>(kRows * kColumns), 0.5f);
  for (const MatrixLayout layout : {MatrixLayout::kRows, MatrixLayout::kPanels16}) {
    for (const float bad : {NAN, INFINITY}) {
      values[3 * kColumns + 7] = bad;    // A group of 64
      values[69 * kColumns + 99] = bad;  // One of 36
      std::vector<std::byte> packed(packed_bytes(layout, Format::kQ4, kRows, kColumns));
      pack_rows(layout, Format::kQ4, DType::kF32, reinterpret_cast<const std::byte*>(values.data()),
                kRows, kColumns, packed.data());
      const NonFinite found =
          count_non_finite_quantized(layout, Format::kQ4, kRows, kColumns, packed);
      CHECK(found.nan == 64 + 36);
      CHECK(found.inf == 0);
    }
  }
}

TEST_CASE("8-bit numbers with a scale a row are counted by the row, in either layout") {
  constexpr int64_t kRows = 70, kColumns = 100;
  std::vector<float> values(static_cast<size_t>(kRows * kColumns), 0.5f);
  values[3 * kColumns + 7] = NAN;
  values[69 * kColumns + 99] = INFINITY;
  for (const MatrixLayout layout : {MatrixLayout::kRows, MatrixLayout::kPanels16}) {
    std::vector<std::byte> packed(packed_bytes(layout, Format::kQ8, kRows, kColumns));
    pack_rows(layout, Format::kQ8, DType::kF32, reinterpret_cast<const std::byte*>(values.data()),
              kRows, kColumns, packed.data());
    const NonFinite found =
        count_non_finite_quantized(layout, Format::kQ8, kRows, kColumns, packed);
    CHECK(found.nan == 200);
    CHECK(found.inf == 0);
  }
}

}  // namespace
}  // namespace spillway::non_finite_test
