// A prompt's attention in 16-bit integers over an 8-bit cache: outputs and scores against those of
// float32 products, and what becomes of damage. (attention_test.cc and its neighbours hold both
// against the definition.)
#include "kernels/cpu/attention_words.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/attention_tile.h"
#include "tests/support/prompt_attention.h"

namespace spillway::attention_words_test {
namespace {

using cpu::PromptProducts;
using test::PromptAttention;
using test::PromptCase;
using test::worst;

TEST_CASE("attention in words is that of float32 products, and has one answer") {
  if (!cpu::attends_by_words()) return;
  // Head size, heads that share, positions in the cache, of all, window
  const auto c = GENERATE(
      PromptCase{Format::kQ8, 64, 4, 64, 80, 0}, PromptCase{Format::kQ8, 32, 1, 0, 130, 0},
      PromptCase{Format::kQ8, 96, 3, 200, 200, 0}, PromptCase{Format::kQ8, 128, 5, 48, 333, 70},
      PromptCase{Format::kQ8, 256, 2, 320, 350, 1}, PromptCase{Format::kQ8, 64, 2, 400, 400, 130});
  REQUIRE(cpu::words_head_size(c.size));
  const bool scored = GENERATE(false, true);
  const float scale = GENERATE(0.2f, 4.0f);  // The second: few keys have most of the weight.
  INFO("head size " << c.size << ", group " << c.group << ", " << c.cached << " of " << c.keys
                    << " cached, window " << c.window << ", scale " << scale);
  PromptAttention prompt(c);
  prompt.view().head.scale = scale;
  const std::vector<float> wanted = prompt.attend(PromptProducts::kFloat, 1, scored);
  const std::vector<float> scores = prompt.scores();
  const std::vector<float> found = prompt.attend(PromptProducts::kWords, 1, scored);
  // Scores are of 3 and of 60 here, and off by some 2^-16 of the number of 4 in each query.
  const double error = scale < 1 ? 1.5e-4 : 2.5e-3;
  CHECK(worst(found, wanted) < error);
  if (scored) CHECK(worst(prompt.scores(), scores) < error);
  if (scored) return;
  CHECK(prompt.attend(PromptProducts::kWords, 7, false) == found);
}

TEST_CASE("queries of any magnitude are rounded beside their own largest number") {
  if (!cpu::attends_by_words()) return;
  const float times = GENERATE(0.0f, 1e-36f, 1e-20f, 1e20f);
  INFO("times " << times);
  PromptAttention prompt({Format::kQ8, 64, 2, 0, 100, 0});
  for (float& number : prompt.queries()) number *= times;
  prompt.view().head.scale = times > 1 ? 0.2f / times : 1.0f;
  const std::vector<float> wanted = prompt.attend(PromptProducts::kFloat, 1, false);
  CHECK(worst(prompt.attend(PromptProducts::kWords, 1, false), wanted) < 1.5e-4);
}

// The damaged row itself and those that see it.
TEST_CASE("words leave damage in the rows that see it") {
  if (!cpu::attends_by_words()) return;
  constexpr int64_t kSize = 64, kKeys = 90, kRow = 41;
  const float damage = GENERATE(static_cast<float>(NAN), static_cast<float>(INFINITY));
  enum class Where { kQuery, kKey, kValue };
  const auto where = GENERATE(Where::kQuery, Where::kKey, Where::kValue);
  INFO("damage " << damage << " in " << static_cast<int>(where));
  PromptAttention prompt({Format::kQ8, kSize, 1, 0, kKeys, 0});
  cpu::PromptView& view = prompt.view();
  std::vector<float> given(view.head.k, view.head.k + 2 * kKeys * kSize);
  view.head.k = given.data();
  view.head.v = given.data() + kKeys * kSize;
  switch (where) {
    case Where::kQuery:
      prompt.queries()[kRow * kSize + 3] = damage;
      break;
    case Where::kKey:
      given[kRow * kSize + 3] = damage;
      break;
    case Where::kValue:
      given[(kKeys + kRow) * kSize + 3] = damage;
      break;
  }
  const std::vector<float> found = prompt.attend(PromptProducts::kWords, 1, false);
  for (int64_t i = 0; i < kKeys * kSize; ++i) {
    const int64_t row = i / kSize;
    INFO("row " << row);
    CHECK(std::isfinite(found[static_cast<size_t>(i)]) ==
          (where == Where::kQuery ? row != kRow : row < kRow));
  }
}

}  // namespace
}  // namespace spillway::attention_words_test
