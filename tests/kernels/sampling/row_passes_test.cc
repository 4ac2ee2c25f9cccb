// Against plain loops, bit for bit: draws must not depend on the width of a CPU's vectors.
#include "kernels/sampling/row_passes.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "tests/support/random_data.h"

namespace spillway::row_passes_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Sixteen chains a block in float32; the rest of the block, then the chains, in float64.
double plain_sum(const std::vector<float>& row, float floor) {
  double total = 0;
  for (size_t begin = 0; begin < row.size(); begin += kRowBlock) {
    const size_t count = std::min(kRowBlock, row.size() - begin);
    float chains[16] = {};
    double sum = 0;
    for (size_t i = 0; i < count; ++i) {
      const float term = row[begin + i] >= floor ? row[begin + i] : 0.0f;
      if (i < count / 16 * 16) {
        chains[i % 16] += term;
      } else {
        sum += term;
      }
    }
    for (float chain : chains) sum += chain;
    total += sum;
  }
  return total;
}

TEST_CASE("passes over rows of every length have the bits of plain loops") {
  for (size_t length : {1, 2, 7, 15, 16, 17, 31, 33, 511, 512, 513, 530, 1024, 1500}) {
    CAPTURE(length);
    const std::vector<float> row = test::random_floats(length, length, 1.0f);
    for (size_t pick : {size_t{0}, length / 2, length - 1}) {
      const float floor = row[pick];
      CHECK(pass_sum(row.data(), length, floor) == plain_sum(row, floor));
      CHECK(pass_count(row.data(), length, floor) ==
            static_cast<size_t>(
                std::count_if(row.begin(), row.end(), [&](float x) { return x >= floor; })));
      CHECK(pass_contains(row.data(), length, floor));
      std::vector<float> kept = row, expected = row;
      pass_drop_below(kept.data(), length, floor);
      for (float& x : expected) x = x >= floor ? x : 0.0f;
      CHECK(kept == expected);
    }
    CHECK_FALSE(pass_contains(row.data(), length, 1e9f));
    const auto highest = std::max_element(row.begin(), row.end());
    const PassBest best = pass_best(row.data(), length);
    CHECK(best.value == *highest);
    CHECK(best.block == static_cast<size_t>(highest - row.begin()) / kRowBlock * kRowBlock);
    CHECK(best.valid);
  }
}

TEST_CASE("a NaN or an infinity anywhere makes a row invalid, and -inf does not") {
  for (size_t length : {5, 16, 21, 600}) {
    for (size_t at = 0; at < length; ++at) {
      std::vector<float> row(length, -1.0f);
      row[at] = -kInfinity;
      CHECK(pass_best(row.data(), length).valid);
      for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
        row[at] = bad;
        CHECK_FALSE(pass_best(row.data(), length).valid);
      }
    }
  }
}

}  // namespace
}  // namespace spillway::row_passes_test
