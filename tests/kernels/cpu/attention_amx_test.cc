// A prompt's attention by matrix units: every number of what is packed for them, and outputs and
// scores against those of float32 products. (Where a CPU has them, attention_test.cc and its
// neighbours hold both against the definition.)
#include "kernels/cpu/attention_amx.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/ops.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/prompt_attention.h"
#include "tests/support/prompt_rows.h"
#include "tests/support/random_data.h"
#include "tests/support/test_devices.h"

namespace spillway::attention_amx_test {
namespace {

using test::PromptAttention;
using test::PromptCase;
using test::random_floats;
using test::worst;

// Part `part` of a number.
uint16_t part_of(float number, int part) {
  const uint16_t first = f32_to_bf16(number);
  return part == 0 ? first : f32_to_bf16(number - bf16_to_f32(first));
}

// [number / 16][64][16] of rows of a tile.
std::vector<float> lines_of(const std::vector<float>& rows, int64_t size) {
  std::vector<float> lines(static_cast<size_t>(cpu::kTileKeys * cpu::key_depth(size)));
  for (int64_t row = 0; row < cpu::kTileKeys; ++row) {
    for (int64_t i = 0; i < size; ++i) {
      lines[static_cast<size_t>((i / 16 * cpu::kTileKeys + row) * 16 + i % 16)] =
          rows[static_cast<size_t>(row * size + i)];
    }
  }
  return lines;
}

TEST_CASE("keys, values and rows are packed for matrix units part by part") {
  if (!cpu::attends_by_tiles()) return;
  const int64_t size = GENERATE(5, 32, 48, 80);
  const int parts = GENERATE(1, 2);
  INFO("head size " << size << ", " << parts << " parts");
  const std::vector<float> rows = random_floats(cpu::kTileKeys * size, 4);
  const std::vector<float> lines = lines_of(rows, size);
  const int64_t depth = cpu::tile_depth(size), width = cpu::key_depth(size), steps = depth / 32;
  const auto count = [&](int64_t numbers) {
    return std::vector<uint16_t>(static_cast<size_t>(parts * numbers), 0xffff);
  };
  std::vector<uint16_t> keys = count(cpu::kTileKeys * depth),
                        values = count(cpu::kTileKeys * width), pairs = count(cpu::kTileKeys * 16);
  cpu::pack_key_tiles(lines.data(), size, parts, keys.data());
  cpu::pack_value_tiles(lines.data(), size, parts, values.data());
  const int64_t part_words = cpu::kTileKeys / 2 * 16;
  cpu::pack_row_pairs(lines.data(), 16, cpu::kTileKeys, parts, part_words,
                      reinterpret_cast<uint32_t*>(pairs.data()));
  for (int part = 0; part < parts; ++part) {
    for (int64_t key = 0; key < cpu::kTileKeys; ++key) {
      for (int64_t i = 0; i < depth; ++i) {
        INFO("part " << part << " of number " << i << " of row " << key);
        const uint16_t wanted =
            i < size ? part_of(rows[static_cast<size_t>(key * size + i)], part) : uint16_t{0};
        const int64_t key_tile = (part * 4 + key / 16) * steps + i / 32;
        REQUIRE(keys[static_cast<size_t>((key_tile * 16 + key % 16) * 32 + i % 32)] == wanted);
        if (i >= width) continue;
        const int64_t value_tile = (part * width / 16 + i / 16) * 2 + key / 32;
        REQUIRE(values[static_cast<size_t>((value_tile * 16 + i % 16) * 32 + key % 32)] == wanted);
        if (i >= 16) continue;
        const int64_t pair = (part * part_words + key / 2 * 16 + i) * 2 + key % 2;
        REQUIRE(pairs[static_cast<size_t>(pair)] == wanted);
      }
    }
  }
}

TEST_CASE("attention by matrix units is that of float32 products, and has one answer") {
  if (!cpu::attends_by_tiles()) return;
  const auto c = GENERATE(PromptCase{Format::kBF16, 64, 1, 0, 100, 0, {1, 1}},
                          PromptCase{Format::kBF16, 80, 2, 64, 97, 0, {2, 1}},
                          PromptCase{Format::kBF16, 16, 3, 150, 150, 40, {1, 1}},
                          PromptCase{Format::kF16, 5, 1, 48, 131, 1, {2, 2}},
                          PromptCase{Format::kF16, 144, 1, 130, 130, 65, {2, 2}},
                          PromptCase{Format::kQ8, 64, 4, 64, 80, 0, {2, 2}},
                          PromptCase{Format::kQ4, 64, 1, 0, 70, 33, {2, 2}});
  const bool scored = GENERATE(false, true);
  INFO(format_name(c.format) << " cache, head size " << c.size << ", group " << c.group << ", "
                             << c.cached << " of " << c.keys << " cached, window " << c.window);
  PromptAttention prompt(c);
  const std::vector<float> wanted = prompt.attend(cpu::PromptProducts::kFloat, 1, scored);
  const std::vector<float> scores = prompt.scores();
  const std::vector<float> found = prompt.attend(cpu::PromptProducts::kTiles, 1, scored);
  const double error = c.parts.rows == 1 ? 5e-3 : 3e-5;
  CHECK(worst(found, wanted) < error);
  if (scored) CHECK(worst(prompt.scores(), scores) < error);
  if (scored) return;
  CHECK(prompt.attend(cpu::PromptProducts::kTiles, 7, false) == found);
}

// A beginning that one request computed serves others, whatever rule they have.
TEST_CASE("a prompt's outputs do not depend on its KV rule where there are matrix units") {
  constexpr int64_t kTokens = 100, kSize = 64, kHeads = 2, kWidth = (kHeads + 2) * kSize;
  const auto format = GENERATE(Format::kBF16, Format::kF16, Format::kQ8);
  INFO(format_name(format) << " cache");
  const auto device = open_cpu_device(2, CpuMatmul::kTiles).value();
  const auto stream = device->new_stream("test");
  const KvLayout layout{1, kSize, format};
  const test::DeviceArray<float> qkv(*device, *stream, random_floats(kTokens * kWidth, 12));
  const auto outputs = [&](const KvBudget& budget) {
    const test::DeviceArray<std::byte> kv(
        *device, *stream, std::vector<std::byte>(layout.sequence_bytes(budget.slots(kTokens))));
    const test::DeviceArray<std::byte> state(
        *device, *stream, std::vector<std::byte>(KvStateLayout{1, budget}.bytes()));
    const test::DeviceArray<float> out(
        *device, *stream, std::vector<float>(static_cast<size_t>(kTokens * kHeads * kSize)));
    const AttentionItem item{0, kTokens, 0, kv.data(), budget, state.data()};
    attention(*stream, {.qkv = qkv.matrix(kTokens, kWidth),
                        .items = {&item, 1},
                        .heads = kHeads,
                        .kv = layout,
                        .out = out.matrix(kTokens, kHeads * kSize)});
    return out.read();
  };
  const std::vector<float> all = outputs({});
  CHECK(outputs({10, 20, true}) == all);
  CHECK(outputs({10, 20, true, 0, KvScore::kSnapMax}) == all);
  CHECK(outputs({10, 20, true, 0, KvScore::kRandom, 5}) == all);
  CHECK(outputs({10, 0, false}) == all);
}

TEST_CASE("matrix units leave a NaN in its row") {
  if (!cpu::attends_by_tiles()) return;
  constexpr int64_t kSize = 32, kKeys = 90, kRow = 40;
  test::PromptRows rows(Format::kBF16, kSize, kKeys);
  std::vector<float> queries = random_floats(kKeys * kSize, 5), found(queries.size());
  queries[kRow * kSize + 3] = NAN;
  cpu::PromptView view = rows.view;
  view.products = cpu::PromptProducts::kTiles;
  view.head.q = queries.data();
  view.head.out = reinterpret_cast<std::byte*>(found.data());
  view.head.out_stride = kSize;
  std::vector<float> scratch(cpu::prompt_scratch_bytes(kSize, kKeys, false) / sizeof(float) + 16);
  cpu::attend_prompt(
      view, 0, kKeys,
      reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64));
  for (size_t i = 0; i < found.size(); ++i) {
    INFO("row " << i / kSize);
    CHECK(std::isnan(found[i]) == (i / kSize == kRow));
  }
}

}  // namespace
}  // namespace spillway::attention_amx_test
