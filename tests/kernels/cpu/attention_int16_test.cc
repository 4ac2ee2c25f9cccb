// A prompt's attention in 16-bit integers over an 8-bit cache: outputs and scores against those of
// float32 products, and what becomes of damage. (attention_test.cc and its neighbours hold both
// against the definition.)
#include "kernels/cpu/attention_int16.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/attention_tile.h"
#include "tests/support/prompt_attention.h"

namespace spillway::attention_int16_test {
namespace {

using cpu::PromptProducts;
using test::PromptAttention;
using test::PromptCase;
using test::worst;

TEST_CASE("attention in 16-bit integers is that of float32 products, and has one answer") {
  if (!cpu::attends_by_int16()) return;
  // Head size, heads that share, positions in the cache, of all, window. The last two have more
  // keys than are packed at once.
  const auto c = GENERATE(
      PromptCase{Format::kQ8, 64, 4, 64, 80, 0}, PromptCase{Format::kQ8, 32, 1, 0, 130, 0},
      PromptCase{Format::kQ8, 96, 3, 200, 200, 0}, PromptCase{Format::kQ8, 128, 5, 48, 333, 70},
      PromptCase{Format::kQ8, 256, 2, 320, 350, 1}, PromptCase{Format::kQ8, 64, 2, 400, 400, 130},
      PromptCase{Format::kQ8, 256, 1, 1088, 1100, 0},
      PromptCase{Format::kQ8, 256, 3, 1296, 1360, 1200});
  REQUIRE(cpu::int16_head_size(c.size));
  const bool scored = GENERATE(false, true);
  const float scale = GENERATE(0.2f, 4.0f);  // The second: few keys have most of the weight.
  INFO("head size " << c.size << ", group " << c.group << ", " << c.cached << " of " << c.keys
                    << " cached, window " << c.window << ", scale " << scale);
  PromptAttention prompt(c);
  prompt.view().head.scale = scale;
  const std::vector<float> wanted = prompt.attend(PromptProducts::kFloat, 1, scored);
  const std::vector<float> scores = prompt.scores();
  const std::vector<float> found = prompt.attend(PromptProducts::kInt16, 1, scored);
  // Scores are of 3 and of 60 here, and off by some 2^-16 of the number of 4 in each query.
  const double error = scale < 1 ? 1.5e-4 : 2.5e-3;
  CHECK(worst(found, wanted) < error);
  if (scored) CHECK(worst(prompt.scores(), scores) < error);
  if (scored) return;
  CHECK(prompt.attend(PromptProducts::kInt16, 7, false) == found);
}

// A prompt of one head, none of which is cached, whose keys and values can be changed.
struct OpenPrompt {
  static constexpr int64_t kSize = 64, kKeys = 90;
  PromptAttention attention{{Format::kQ8, kSize, 1, 0, kKeys, 0}};
  std::vector<float> rows;  // Keys, then values

  OpenPrompt() {
    cpu::HeadView& head = attention.view().head;
    rows.assign(head.k, head.k + 2 * kKeys * kSize);
    head.k = rows.data();
    head.v = rows.data() + kKeys * kSize;
  }
  float* query(int64_t row) { return attention.queries().data() + row * kSize; }
  float* key(int64_t row) { return rows.data() + row * kSize; }
  float* value(int64_t row) { return rows.data() + (kKeys + row) * kSize; }
};

TEST_CASE("a query is rounded beside its own largest number") {
  if (!cpu::attends_by_int16()) return;
  const float times = GENERATE(1e-20f, 1e-10f, 1e10f, 1e20f);
  INFO("times " << times);
  OpenPrompt prompt;
  // As before, but for the magnitudes of the factors
  for (int64_t i = 0; i < OpenPrompt::kKeys * OpenPrompt::kSize; ++i) {
    prompt.query(0)[i] *= times;
    prompt.key(0)[i] /= times;
  }
  // And a row of zeros, and one that sees but its highest score, beside the others.
  for (int64_t i = 0; i < OpenPrompt::kSize; ++i) {
    prompt.query(40)[i] = 0;
    prompt.query(41)[i] *= 1e6f;
  }
  const std::vector<float> wanted = prompt.attention.attend(PromptProducts::kFloat, 1, false);
  const std::vector<float> found = prompt.attention.attend(PromptProducts::kInt16, 1, false);
  CHECK(worst(found, wanted) < 1.5e-4);
}

TEST_CASE("16-bit integers leave damage in the rows that see it, and all others as they are") {
  if (!cpu::attends_by_int16()) return;
  constexpr int64_t kRow = 41;
  const float damage = GENERATE(static_cast<float>(NAN), static_cast<float>(INFINITY));
  enum class Where { kQuery, kKey, kValue };
  const auto where = GENERATE(Where::kQuery, Where::kKey, Where::kValue);
  const bool scored = GENERATE(false, true);
  INFO("damage " << damage << " in " << static_cast<int>(where));
  OpenPrompt prompt;
  const std::vector<float> whole = prompt.attention.attend(PromptProducts::kInt16, 1, scored);
  float* const row = where == Where::kQuery ? prompt.query(kRow)
                     : where == Where::kKey ? prompt.key(kRow)
                                            : prompt.value(kRow);
  row[3] = damage;
  const std::vector<float> found = prompt.attention.attend(PromptProducts::kInt16, 1, scored);
  for (int64_t i = 0; i < OpenPrompt::kKeys * OpenPrompt::kSize; ++i) {
    const int64_t at = i / OpenPrompt::kSize;
    INFO("row " << at);
    if (where == Where::kQuery ? at == kRow : at >= kRow) {
      CHECK(std::isnan(found[static_cast<size_t>(i)]));
    } else {
      CHECK(found[static_cast<size_t>(i)] == whole[static_cast<size_t>(i)]);
    }
  }
}

TEST_CASE("the bits of a NaN in the cache are in no row that does not see it") {
  if (!cpu::attends_by_int16()) return;
  const uint32_t bits = GENERATE(0x7fc00001u, 0xffc0ffffu, 0x7f800123u, 0xff800000u);
  constexpr int64_t kSize = 64, kKeys = 96, kDamaged = 70;
  PromptAttention prompt({Format::kQ8, kSize, 2, kKeys, kKeys, 0});
  const std::vector<float> whole = prompt.attend(PromptProducts::kInt16, 1, false);
  cpu::PromptView& view = prompt.view();
  std::memcpy(view.head.value_at(kDamaged), &bits, sizeof(bits));  // The row's scale
  const std::vector<float> found = prompt.attend(PromptProducts::kInt16, 1, false);
  const int64_t first = (kDamaged - view.position) * view.group * kSize;
  for (int64_t i = 0; i < static_cast<int64_t>(found.size()); ++i) {
    INFO("number " << i << ", those from " << first << " on see it");
    if (i < first) {
      CHECK(found[static_cast<size_t>(i)] == whole[static_cast<size_t>(i)]);
    } else {
      CHECK(std::isnan(found[static_cast<size_t>(i)]));
    }
  }
}

}  // namespace
}  // namespace spillway::attention_int16_test
