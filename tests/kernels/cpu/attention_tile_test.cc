// Tiles of a prompt's attention against the definition, with every set of instructions.
#include "kernels/cpu/attention_tile.h"

#include <hwy/targets.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/attention_pack.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/prompt_rows.h"

namespace spillway::attention_tile_test {
namespace {

constexpr int64_t kRows = cpu::kTileQueries, kKeys = cpu::kTileKeys;

struct Case {
  int64_t size, group, position, tokens, window;
};

// Queries of a prompt and what a tile of them computes over all keys.
class Tile {
 public:
  explicit Tile(const Case& c)
      : case_(c),
        prompt_(Format::kF32, c.size, c.position + c.tokens),
        queries_(test::random_floats(c.tokens * c.group * c.size, 5)),
        found_(queries_.size(), NAN) {
    view_ = prompt_.view;
    view_.position = c.position;
    view_.head.tokens = c.tokens;
    view_.group = c.group;
    view_.window = c.window;
    view_.head.scale = 0.2f;
    view_.head.q = queries_.data();
    view_.head.stride = view_.head.out_stride = c.group * c.size;
    view_.head.out = reinterpret_cast<std::byte*>(found_.data());
  }

  int64_t tiles() const { return (view_.keys() + kKeys - 1) / kKeys; }
  const std::vector<float>& found() const { return found_; }
  float* query(int64_t row) { return queries_.data() + row * case_.size; }

  // Rows [first, first + rows), with the sums of their weights of every key, or the highest.
  std::vector<float> attend(int64_t first, int64_t rows, bool highest) {
    const int64_t depth = cpu::key_depth(case_.size), tile_floats = kKeys * depth;
    const auto floats = [](int64_t count) {
      return std::vector<float>(static_cast<size_t>(count));
    };
    std::vector<float> scratch = floats(kRows * depth), packed = floats(kRows * depth),
                       out = floats(kRows * depth), sum = floats(kRows), again_sum = floats(kRows),
                       keys = floats(tiles() * tile_floats), values = keys,
                       weights = floats(kRows * kKeys), maxima = floats(kRows),
                       scores = floats(tiles() * kKeys);
    std::vector<float> maximum(kRows, -std::numeric_limits<float>::infinity()), again = maximum;
    std::vector<int32_t> positions(kRows);
    for (int64_t i = 0; i < kRows; ++i) {
      positions[static_cast<size_t>(i)] =
          static_cast<int32_t>(view_.position + (first + std::min(i, rows - 1)) / view_.group);
    }
    cpu::pack_tiles(view_, false, 0, tiles(), scratch.data(), keys.data());
    cpu::pack_tiles(view_, true, 0, tiles(), scratch.data(), values.data());
    cpu::pack_queries(view_, first, rows, packed.data());
    cpu::TileQueries queries;
    queries.rows = rows;
    queries.head_size = case_.size;
    queries.positions = positions.data();
    queries.packed = packed.data();
    queries.maximum = maximum.data();
    queries.sum = sum.data();
    const auto keys_of = [&](int64_t tile) {
      cpu::TileKeys of;
      of.keys = keys.data() + tile * tile_floats;
      of.values = values.data() + tile * tile_floats;
      of.first_key = tile * kKeys;
      of.window = view_.window;
      return of;
    };
    for (int64_t tile = 0; tile < tiles(); ++tile) {
      cpu::attend_tile(queries, keys_of(tile), false, weights.data(), out.data());
    }
    cpu::store_tile(view_, first, rows, sum.data(), out.data(), scratch.data());
    // The weights once more: there are no outputs without values.
    for (int64_t tile = 0; tile < tiles(); ++tile) {
      cpu::TileQueries second = queries;
      second.maximum = again.data();
      second.sum = again_sum.data();
      cpu::TileKeys only_keys = keys_of(tile);
      only_keys.values = nullptr;
      cpu::attend_tile(second, only_keys, true, weights.data(), nullptr);
      maxima = again;
      const auto sees = [&](int64_t row) {
        const int64_t at = positions[static_cast<size_t>(row)];
        return at >= tile * kKeys &&
               (view_.window == 0 || at - view_.window + 1 < (tile + 1) * kKeys);
      };
      int64_t from = 0, to = rows;
      while (from < rows && !sees(from)) ++from;
      while (to > from && !sees(to - 1)) --to;
      if (from == to) continue;
      cpu::add_weights(queries, maxima.data(), weights.data(), from, to, highest,
                       scores.data() + tile * kKeys);
    }
    // By bits: NaN too
    CHECK(std::memcmp(sum.data(), again_sum.data(), static_cast<size_t>(rows) * sizeof(float)) ==
          0);
    return scores;
  }

  // The softmax weights of a row, and its outputs.
  std::vector<double> weights(int64_t row) const {
    const int64_t at = case_.position + row / case_.group;
    std::vector<double> found(static_cast<size_t>(view_.keys()));
    double all = 0, most = -INFINITY;
    for (const bool last : {false, true}) {
      for (int64_t key = 0; key <= at; ++key) {
        if (case_.window != 0 && key <= at - case_.window) continue;
        double score = 0;
        for (int64_t i = 0; i < case_.size; ++i) {
          score += double{queries_[static_cast<size_t>(row * case_.size + i)]} *
                   double{prompt_.rows[static_cast<size_t>(key * case_.size + i)]};
        }
        score *= double{0.2f};
        most = std::max(most, score);
        if (!last) continue;
        all += found[static_cast<size_t>(key)] = std::exp(score - most);
      }
    }
    for (double& weight : found) weight /= all;
    return found;
  }
  std::vector<double> outputs(const std::vector<double>& weights) const {
    std::vector<double> found(static_cast<size_t>(case_.size));
    for (int64_t key = 0; key < view_.keys(); ++key) {
      for (int64_t i = 0; i < case_.size; ++i) {
        const int64_t value = (view_.keys() + key) * case_.size + i;
        found[static_cast<size_t>(i)] +=
            weights[static_cast<size_t>(key)] * double{prompt_.rows[static_cast<size_t>(value)]};
      }
    }
    return found;
  }

 private:
  const Case case_;
  test::PromptRows prompt_;
  std::vector<float> queries_, found_;
  cpu::PromptView view_;
};

TEST_CASE("a tile's outputs and weights are those of the definition") {
  const auto c =
      GENERATE(Case{64, 1, 0, 96, 0}, Case{5, 1, 60, 70, 0}, Case{80, 3, 20, 31, 0},
               Case{16, 1, 100, 96, 40}, Case{20, 2, 130, 47, 1}, Case{16, 1, 64, 3, 65});
  const bool highest = GENERATE(false, true);
  INFO("head size " << c.size << ", group " << c.group << ", position " << c.position << ", tokens "
                    << c.tokens << ", window " << c.window);
  test::for_each_instruction_set([&] {
    Tile tile(c);
    const int64_t rows = c.tokens * c.group;
    const std::vector<float> scores = tile.attend(0, rows, highest);
    std::vector<double> expected(scores.size());
    for (int64_t row = 0; row < rows; ++row) {
      INFO("row " << row);
      const auto weights = tile.weights(row);
      for (size_t key = 0; key < weights.size(); ++key) {
        expected[key] =
            highest ? std::max(expected[key], weights[key]) : expected[key] + weights[key];
      }
      const auto outputs = tile.outputs(weights);
      for (int64_t i = 0; i < c.size; ++i) {
        REQUIRE(double{tile.found()[static_cast<size_t>(row * c.size + i)]} ==
                Approx(outputs[static_cast<size_t>(i)]).epsilon(1e-5).margin(4e-6));
      }
    }
    for (size_t key = 0; key < scores.size(); ++key) {
      INFO("key " << key);
      REQUIRE(double{scores[key]} == Approx(expected[key]).epsilon(1e-5).margin(1e-30));
    }
  });
}

TEST_CASE("a row of a tile has the bits that it has in any other") {
  const Case c{48, 2, 33, 48, GENERATE(0, 50)};
  test::for_each_instruction_set([&] {
    Tile tile(c);
    tile.attend(0, 96, false);
    const auto together = tile.found();
    for (const int64_t rows : {1, 7, 50}) {
      for (int64_t first = 0; first < 96; first += rows) {
        tile.attend(first, std::min(rows, 96 - first), false);
      }
      CHECK(tile.found() == together);
    }
  });
}

TEST_CASE("NaN and scores far below the highest stay in their rows") {
  test::for_each_instruction_set([&] {
    Tile tile({16, 1, 0, 90, 0});
    tile.query(40)[3] = NAN;
    for (int64_t i = 0; i < 16; ++i) tile.query(41)[i] *= 1e4f;
    tile.attend(0, 90, false);
    for (size_t i = 0; i < tile.found().size(); ++i) {
      INFO("row " << i / 16);
      CHECK(std::isnan(tile.found()[i]) == (i / 16 == 40));
    }
  });
}

}  // namespace
}  // namespace spillway::attention_tile_test
