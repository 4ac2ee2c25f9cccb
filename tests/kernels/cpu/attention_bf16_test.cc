// Tiles of pairs of bf16: every number at its place, as the cache has it or rounded to nearest
// even, and the softmax of a tile against its definition.
#include "kernels/cpu/attention_bf16.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_pack.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/strips.h"
#include "tests/support/prompt_rows.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"

namespace spillway::attention_bf16_test {
namespace {

// The bf16 number of a row in a word of pairs.
float in_pair(uint32_t pair, int64_t number) {
  return bf16_to_f32(static_cast<uint16_t>(number % 2 == 0 ? pair : pair >> 16));
}

TEST_CASE("packed pairs have the rows of the cache, or those that it would give back") {
  if (!cpu::has_bf16_dot()) return;
  const int64_t size = GENERATE(5, 64, 80), keys = GENERATE(1, 64, 101, 130);
  INFO("head size " << size << ", " << keys << " keys");
  test::PromptRows prompt(Format::kBF16, size, keys);
  const auto& rows = prompt.rows;
  const int64_t cached = GENERATE(0, 48, 96, 130);
  const cpu::PromptView view = prompt.with_cached(std::min(cached, keys));
  const int64_t tiles = (keys + cpu::kTileKeys - 1) / cpu::kTileKeys;
  const int64_t first = keys > cpu::kTileKeys ? 1 : 0;
  const int64_t pairs = cpu::key_pairs(size), width = cpu::value_width(size);
  REQUIRE(2 * pairs >= size);
  std::vector<float> scratch(static_cast<size_t>(cpu::pair_scratch_floats(size)), NAN);
  const int64_t all = (tiles - first) * cpu::kTileKeys;
  std::vector<uint32_t> packed_keys(static_cast<size_t>(all * pairs), ~0u),
      packed_values(static_cast<size_t>(all * width / 2), ~0u);
  cpu::pack_key_pairs(view, first, tiles, scratch.data(), packed_keys.data());
  cpu::pack_value_pairs(view, first, tiles, scratch.data(), packed_values.data());
  for (int64_t key = first * cpu::kTileKeys; key < tiles * cpu::kTileKeys; ++key) {
    const auto row_of = [&](int64_t row, int64_t length) {
      std::vector<float> wanted(static_cast<size_t>(length));
      if (key >= keys) return wanted;
      const auto at = rows.begin() + row * size;
      const auto found = test::cached_row(Format::kBF16, {at, at + size});
      std::copy(found.begin(), found.end(), wanted.begin());
      return wanted;
    };
    const auto wanted_key = row_of(key, 2 * pairs), wanted_value = row_of(keys + key, width);
    const int64_t at = key - first * cpu::kTileKeys, tile = at / cpu::kTileKeys;
    for (int64_t i = 0; i < 2 * pairs; ++i) {
      INFO("key " << key << ", number " << i);
      const int64_t word = at / 16 * 16 * pairs + i / 2 * 16 + at % 16;
      REQUIRE(in_pair(packed_keys[static_cast<size_t>(word)], i) ==
              wanted_key[static_cast<size_t>(i)]);
    }
    for (int64_t i = 0; i < width; ++i) {
      INFO("value " << key << ", number " << i);
      const int64_t in_tile = at % cpu::kTileKeys;
      const int64_t word = tile * cpu::kTileKeys / 2 * width + i / 16 * 16 * cpu::kTileKeys / 2 +
                           in_tile / 2 * 16 + i % 16;
      REQUIRE(in_pair(packed_values[static_cast<size_t>(word)], in_tile) ==
              wanted_value[static_cast<size_t>(i)]);
    }
  }
}

TEST_CASE("rows are rounded to nearest even and packed as strips") {
  if (!cpu::has_bf16_dot()) return;
  const int64_t rows = GENERATE(1, 12, 13, 96), columns = GENERATE(5, 64, 80);
  const int64_t stride = columns + 3, words = cpu::pair_columns(columns);
  const auto from = test::random_floats(rows * stride, 5);
  std::vector<uint32_t> strips(static_cast<size_t>(rows * words), ~0u);
  cpu::pack_pair_strips(from.data(), stride, rows, columns, strips.data());
  std::vector<uint16_t> rounded(from.size());
  for (size_t i = 0; i < from.size(); ++i) rounded[i] = f32_to_bf16(from[i]);
  std::vector<uint32_t> again(strips.size(), ~0u);
  cpu::pack_rounded_strips(rounded.data(), stride, rows, columns, again.data());
  CHECK(again == strips);
  const cpu::Strips cut(rows, cpu::kBf16StripRows);
  for (int64_t s = 0; s < cut.count(); ++s) {
    for (int64_t i = 0; i < cut.height(s); ++i) {
      const int64_t row = cut.first(s) + i;
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t word = cut.first(s) * words + c / 2 * cut.height(s) + i;
        REQUIRE(in_pair(strips[static_cast<size_t>(word)], c) ==
                bf16_to_f32(rounded[static_cast<size_t>(row * stride + c)]));
      }
    }
  }
}

TEST_CASE("the softmax of a tile is that of the definition", "[sanitizer]") {
  if (!cpu::has_bf16_dot()) return;
  constexpr size_t kRows = cpu::kGemmRowsMax, kKeys = cpu::kTileKeys;
  const int64_t window = GENERATE(0, 10, 64, 200), first_key = GENERATE(0, 128);
  const bool keep = GENERATE(true, false);
  const size_t first = GENERATE(0, 37), end = GENERATE(90, 96);
  std::vector<int32_t> positions(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    positions[i] = static_cast<int32_t>(first_key) + static_cast<int32_t>(i);
  }
  const cpu::TileRows tile{positions.data(), first_key, window};
  struct alignas(64) Scores {
    float of[kRows * kKeys];
  } scores;
  const auto random = test::random_floats(kRows * kKeys, 8, 6.0f);
  std::copy(random.begin(), random.end(), scores.of);
  // A NaN shows in its row alone; what a row may not see does not matter.
  scores.of[50 * kKeys + 45] = NAN;
  scores.of[(first + 1) * kKeys + 63] = NAN;
  std::vector<uint16_t> rounded(kRows * kKeys, 0xffff);
  std::vector<float> maximum(kRows, -std::numeric_limits<float>::infinity()), sum(kRows),
      factor(kRows, -1.0f);
  for (size_t i = 0; i < kRows; i += 3) {  // Rows that have seen keys before
    maximum[i] = i % 2 == 0 ? -1.0f : 40.0f;
    sum[i] = 2.5f;
  }
  const auto maximum_before = maximum, sum_before = sum;
  cpu::softmax_pairs(tile, first, end, keep, scores.of, rounded.data(), maximum.data(), sum.data(),
                     factor.data());
  for (size_t i = first; i < end; ++i) {
    INFO("row " << i);
    const auto seen = [&](size_t j) {
      const int64_t key = first_key + static_cast<int64_t>(j), at = positions[i];
      return key <= at && (window == 0 || key > at - window);
    };
    double most = maximum_before[i], all = 0;
    bool nan = false, any = false;
    for (size_t j = 0; j < kKeys; ++j) {
      if (!seen(j)) continue;
      any = true;
      nan = nan || std::isnan(random[i * kKeys + j]) || (i == 50 && j == 45);
      most = std::max(most, double{random[i * kKeys + j]});
    }
    if (!any) continue;
    if (nan) {
      CHECK(std::isnan(sum[i]));
      continue;
    }
    REQUIRE(double{maximum[i]} == most);
    for (size_t j = 0; j < kKeys; ++j) {
      INFO("key " << j);
      const double e = seen(j) ? std::exp(double{random[i * kKeys + j]} - most) : 0;
      all += e;
      CHECK(double{bf16_to_f32(rounded[i * kKeys + j])} ==
            Approx(e).epsilon(1.0 / 256).margin(1e-38));
      if (keep) CHECK(double{scores.of[i * kKeys + j]} == Approx(e).epsilon(1e-5).margin(1e-38));
    }
    const double scale = std::isinf(maximum_before[i]) ? 0 : std::exp(maximum_before[i] - most);
    if (!std::isinf(maximum_before[i])) CHECK(double{factor[i]} == Approx(scale).epsilon(1e-6));
    CHECK(double{sum[i]} == Approx(sum_before[i] * scale + all).epsilon(1e-5));
  }
}

}  // namespace
}  // namespace spillway::attention_bf16_test
