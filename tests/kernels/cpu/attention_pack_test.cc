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
  const auto format = GENERATE(Format::kF32, Format::kBF16, Format::kF16, Format::kQ4, Format::kQ8);
  const int64_t size = GENERATE(5, 64, 80), keys = GENERATE(1, 64, 100, 130);
  INFO(format_name(format) << ", head size " << size << ", " << keys << " keys");
  test::PromptRows prompt(format, size, keys);
  const auto& rows = prompt.rows;
  const int64_t cached = GENERATE(0, 48, 96, 130);
  const cpu::PromptView view = prompt.with_cached(std::min(cached, keys));
  const int64_t tiles = (keys + cpu::kTileKeys - 1) / cpu::kTileKeys;
  const int64_t first = keys > cpu::kTileKeys ? 1 : 0;
  const int64_t depth = cpu::key_depth(size);
  std::vector<float> scratch(static_cast<size_t>(cpu::pack_scratch_floats(size)), NAN);
  const auto floats = static_cast<size_t>((tiles - first) * cpu::kTileKeys);
  std::vector<float> packed_keys(floats * static_cast<size_t>(depth), NAN),
      packed_values = packed_keys;
  cpu::pack_tiles(view, false, first, tiles, scratch.data(), packed_keys.data());
  cpu::pack_tiles(view, true, first, tiles, scratch.data(), packed_values.data());
  for (int64_t key = first * cpu::kTileKeys; key < tiles * cpu::kTileKeys; ++key) {
    const auto row_of = [&](int64_t row) {
      const auto at = rows.begin() + row * size;
      return key < keys ? test::cached_row(format, {at, at + size})
                        : std::vector<float>(static_cast<size_t>(size));
    };
    const auto wanted_key = row_of(key), wanted_value = row_of(keys + key);
    const int64_t at = key - first * cpu::kTileKeys, tile = at / cpu::kTileKeys;
    for (int64_t i = 0; i < depth; ++i) {
      INFO("key " << key << ", number " << i);
      const auto place =
          static_cast<size_t>(tile * cpu::kTileKeys * depth + i / 16 * 16 * cpu::kTileKeys +
                              at % cpu::kTileKeys * 16 + i % 16);
      const auto number = static_cast<size_t>(i);
      REQUIRE(packed_keys[place] == (i < size ? wanted_key[number] : 0.0f));
      REQUIRE(packed_values[place] == (i < size ? wanted_value[number] : 0.0f));
    }
  }
}

TEST_CASE("rows are stored with the bytes of the format, whatever is in them") {
  constexpr int64_t kKeys = 3;
  for (const Format format : kFormats) {
    if (!format_traits(format).kv_cache || !is_quantized(format)) continue;
    for (const int64_t size : {5, 64, 80, 128, 192}) {
      for (const float deviation : {1e-7f, 0.02f, 3.0f, 1e6f, 1e38f}) {
        INFO(format_name(format) << ", head size " << size << ", deviation " << deviation);
        test::PromptRows prompt(format, size, kKeys);
        auto& rows = prompt.rows;
        rows = test::random_floats(2 * kKeys * size, 9, deviation);
        rows[static_cast<size_t>(size) + 2] = NAN;
        rows[static_cast<size_t>(2 * size) - 1] = -INFINITY;
        std::fill_n(rows.begin() + 2 * size, size, 0.0f);
        rows[static_cast<size_t>(2 * size)] = -0.0f;
        cpu::HeadView& head = prompt.view.head;
        head.k = rows.data();
        head.v = rows.data() + kKeys * size;
        cpu::store_rows(head, 0, kKeys, 0);
        std::vector<std::byte> expected(head.kv_row_bytes);
        for (int64_t key = 0; key < kKeys; ++key) {
          const auto at = static_cast<size_t>(key * size), count = static_cast<size_t>(size);
          pack_quantized_row(format, {rows.data() + at, count}, expected.data());
          CHECK(std::equal(expected.begin(), expected.end(), head.key_at(key)));
          const auto value = static_cast<size_t>((kKeys + key) * size);
          pack_quantized_row(format, {rows.data() + value, count}, expected.data());
          CHECK(std::equal(expected.begin(), expected.end(), head.value_at(key)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway::attention_pack_test
