// Packed tiles of keys and values: every number at its place, as the cache gives it back.
#include "kernels/cpu/attention_pack.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/prompt_rows.h"
#include "tests/support/rounding.h"

namespace spillway::attention_pack_test {
namespace {

TEST_CASE("packed tiles have the rows of the cache, or those that it would give back") {
  const auto format = GENERATE(Format::kF32, Format::kBF16, Format::kF16, Format::kQ4);
  const int64_t size = GENERATE(5, 64, 80), keys = GENERATE(1, 64, 100, 130);
  INFO(format_name(format) << ", head size " << size << ", " << keys << " keys");
  test::PromptRows prompt(format, size, keys);
  const auto& rows = prompt.rows;
  const int64_t cached = GENERATE(0, 48, 96, 130);
  const cpu::PromptView view = prompt.with_cached(std::min(cached, keys));
  const int64_t tiles = (keys + cpu::kTileKeys - 1) / cpu::kTileKeys;
  const int64_t first = keys > cpu::kTileKeys ? 1 : 0;
  const int64_t depth = cpu::key_depth(size), width = cpu::value_width(size);
  std::vector<float> scratch(static_cast<size_t>(cpu::pack_scratch_floats(size)), NAN);
  const auto floats = static_cast<size_t>((tiles - first) * cpu::kTileKeys);
  std::vector<float> packed_keys(floats * static_cast<size_t>(depth), NAN),
      packed_values(floats * static_cast<size_t>(width), NAN);
  cpu::pack_key_tiles(view, first, tiles, scratch.data(), packed_keys.data());
  cpu::pack_value_tiles(view, first, tiles, scratch.data(), packed_values.data());
  for (int64_t key = first * cpu::kTileKeys; key < tiles * cpu::kTileKeys; ++key) {
    const auto row_of = [&](int64_t row) {
      const auto at = rows.begin() + row * size;
      return key < keys ? test::cached_row(format, {at, at + size})
                        : std::vector<float>(static_cast<size_t>(size));
    };
    const auto wanted_key = row_of(key), wanted_value = row_of(keys + key);
    const int64_t at = key - first * cpu::kTileKeys, tile = at / cpu::kTileKeys;
    for (int64_t i = 0; i < size; ++i) {
      INFO("key " << key << ", number " << i);
      const int64_t in_keys = at / 16 * 16 * depth + i * 16 + at % 16;
      const int64_t in_values = tile * cpu::kTileKeys * width + i / 16 * 16 * cpu::kTileKeys +
                                at % cpu::kTileKeys * 16 + i % 16;
      REQUIRE(packed_keys[static_cast<size_t>(in_keys)] == wanted_key[static_cast<size_t>(i)]);
      REQUIRE(packed_values[static_cast<size_t>(in_values)] ==
              wanted_value[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace
}  // namespace spillway::attention_pack_test
