#include "kernels/base/kv_random.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace spillway::kv_random_test {
namespace {

std::vector<uint32_t> ranks(uint64_t seed, int64_t layer, int64_t head, int64_t count) {
  const KvDraw draw(KvDraw::key_of(seed, layer), head);
  std::vector<uint32_t> found;
  for (int64_t i = 0; i < count; ++i) found.push_back(draw.rank(i));
  return found;
}

// Pearson's correlation.
double correlation(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  const auto count = static_cast<double>(a.size());
  const auto mean = [&](const auto& of) {
    return std::accumulate(of.begin(), of.end(), 0.0) / count;
  };
  const double mean_a = mean(a), mean_b = mean(b);
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i] - mean_a, y = b[i] - mean_b;
    ab += x * y, aa += x * x, bb += y * y;
  }
  return ab / std::sqrt(aa * bb);
}

TEST_CASE("positions of a sequence draw different ranks below that of protected ones") {
  const auto drawn = ranks(7, 3, 1, 100000);
  CHECK(std::set<uint32_t>(drawn.begin(), drawn.end()).size() == drawn.size());
  CHECK(*std::max_element(drawn.begin(), drawn.end()) < KvDraw::kProtected);
}

// Of 16 equal parts of the range each has a sixteenth of the ranks: chi-squared with 15 degrees of
// freedom is below 37.7 in 999 of 1,000 cases; these are fixed.
TEST_CASE("ranks are uniform, over positions and over seeds") {
  const auto chi_squared = [](const std::vector<uint32_t>& drawn) {
    std::array<double, 16> counts{};
    for (const uint32_t rank : drawn) ++counts[rank >> 28];
    const double expected = static_cast<double>(drawn.size()) / 16;
    double sum = 0;
    for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
    return sum;
  };
  for (const uint64_t seed : {0, 1, 2, 3}) CHECK(chi_squared(ranks(seed, 0, 0, 20000)) < 37.7);
  std::vector<uint32_t> over_seeds;
  for (uint64_t seed = 0; seed < 20000; ++seed) over_seeds.push_back(ranks(seed, 5, 2, 1)[0]);
  CHECK(chi_squared(over_seeds) < 37.7);
}

// Four standard deviations of a correlation of 20,000 independent pairs are 0.028.
TEST_CASE("seeds, layers, heads and neighbouring positions draw independently") {
  constexpr int64_t kCount = 20000;
  const auto base = ranks(1, 2, 3, kCount);
  CHECK(correlation(base, ranks(2, 2, 3, kCount)) == Approx(0).margin(0.028));
  CHECK(correlation(base, ranks(1, 3, 3, kCount)) == Approx(0).margin(0.028));
  CHECK(correlation(base, ranks(1, 2, 4, kCount)) == Approx(0).margin(0.028));
  CHECK(correlation(base, ranks(2, 1, 3, kCount)) == Approx(0).margin(0.028));
  auto shifted = ranks(1, 2, 3, kCount + 1);
  shifted.erase(shifted.begin());
  CHECK(correlation(base, shifted) == Approx(0).margin(0.028));
}

}  // namespace
}  // namespace spillway::kv_random_test
