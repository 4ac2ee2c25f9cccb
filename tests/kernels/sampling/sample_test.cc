// sample_rows on every device against its rules in the plainest way: everything in double, sorted
// as a whole.
//
// SPILLWAY_EMULATION_SEED: 1
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/ops.h"
#include "tests/support/test_devices.h"

namespace spillway::sampling_sample_test {
namespace {

using test::DeviceArray;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// What each number weighs, of a sum of 1; empty when nothing can be drawn.
std::vector<double> shares_of(std::vector<float> row, const SampleRule& rule) {
  row.resize(static_cast<size_t>(rule.count));
  const auto invalid = [](float x) { return std::isnan(x) || x == kInfinity; };
  if (std::any_of(row.begin(), row.end(), invalid)) return {};
  const float best = row.empty() ? -kInfinity : *std::max_element(row.begin(), row.end());
  if (best == -kInfinity) return {};
  std::vector<double> weights(row.size());
  if (rule.temperature == 0) {
    weights[static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin())] = 1;
    return weights;
  }
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
  const auto k = static_cast<size_t>(rule.top_k);
  const float lowest = k > 0 && k < row.size() ? row[order[k - 1]] : -kInfinity;
  for (size_t i = 0; i < row.size(); ++i) {
    const double weight = std::exp((static_cast<double>(row[i]) - best) / rule.temperature);
    weights[i] = row[i] < lowest || weight < rule.min_p ? 0 : weight;
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  double kept = 0;
  for (const size_t i : order) {
    if (rule.top_p < 1 && kept >= static_cast<double>(rule.top_p) * sum) weights[i] = 0;
    kept += weights[i];
  }
  for (double& weight : weights) weight /= kept;
  return weights;
}

// Draws from every row on every device, and holds what comes against the shares: `uniform` lies
// within the index's own part of them, give or take rounding.
void check_samples(const std::vector<std::vector<float>>& rows,
                   const std::vector<SampleRule>& rules) {
  const auto columns = static_cast<int64_t>(rows[0].size());
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<float> in;
  for (const auto& row : rows) in.insert(in.end(), row.begin(), row.end());
  for (const auto& device : test::test_devices()) {
    INFO(device->name() << ", columns " << columns);
    const auto stream = device->new_stream("test");
    const DeviceArray<float> x(*device, *stream, in);
    const DeviceArray<int32_t> out(*device, *stream, std::vector<int32_t>(rows.size(), -7));
    sample_rows(*stream, {.in = x.matrix(count, columns), .rules = rules, .out = out.data()});
    const std::vector<int32_t> found = out.read();
    const std::vector<float> after = x.read();
    for (size_t i = 0; i < rows.size(); ++i) {
      const SampleRule& rule = rules[i];
      INFO("row " << i << " of " << rule.count << ", temperature " << rule.temperature << ", top_k "
                  << rule.top_k << ", top_p " << rule.top_p << ", min_p " << rule.min_p
                  << ", uniform " << rule.uniform);
      const std::vector<double> shares = shares_of(rows[i], rule);
      if (shares.empty()) {
        CHECK(found[i] == -1);
        // Whoever looks for the reason finds the row as it was.
        const auto begin = after.begin() + static_cast<int64_t>(i) * columns;
        CHECK(std::equal(begin, begin + columns, rows[i].begin(), [](float a, float b) {
          return a == b || (std::isnan(a) && std::isnan(b));
        }));
        continue;
      }
      REQUIRE(found[i] >= 0);
      REQUIRE(found[i] < rule.count);
      const auto index = static_cast<size_t>(found[i]);
      const auto here = shares.begin() + static_cast<int64_t>(index);
      const double before = std::accumulate(shares.begin(), here, 0.0);
      CHECK(shares[index] > 0);
      CHECK(rule.uniform >= before - 1e-5);
      CHECK(rule.uniform <= before + shares[index] + 1e-5);
    }
  }
}

std::vector<float> noise(std::mt19937_64& random, int64_t columns) {
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> row(static_cast<size_t>(columns));
  for (float& x : row) x = normal(random);
  return row;
}

// Few different numbers, so that there are ties; both zeros are one number.
std::vector<float> steps(std::mt19937_64& random, int64_t columns) {
  std::vector<float> row(static_cast<size_t>(columns));
  for (float& x : row) x = static_cast<float>(static_cast<int>(random() % 9) - 8) * 0.5f;
  for (size_t i = 0; i < row.size(); i += 5) row[i] = row[i] == 0 ? -0.0f : row[i];
  return row;
}

TEST_CASE("sample_rows without a temperature finds the first highest number of each row",
          "[sanitizer]") {
  const int64_t columns = GENERATE(1, 31, 600, 2049);
  std::mt19937_64 random(static_cast<uint64_t>(columns));
  const auto any = [&] { return random() % static_cast<uint64_t>(columns); };
  std::vector<std::vector<float>> rows;
  for (int i = 0; i < 24; ++i) rows.push_back(steps(random, columns));
  rows[1][any()] = kNaN;
  rows[2][any()] = kInfinity;
  rows[3][any()] = -kInfinity;
  std::fill(rows[4].begin(), rows[4].end(), -kInfinity);
  rows[5].back() = 100;
  rows[6].front() = 100;
  std::fill(rows[7].begin(), rows[7].end(), 3.5f);
  rows[8].back() = kNaN;  // Behind the last that counts, below
  std::vector<SampleRule> rules(rows.size(), {.count = static_cast<int32_t>(columns)});
  rules[8].count = static_cast<int32_t>(columns - 1);
  rules[9].count = 0;
  for (size_t i = 10; i < rules.size(); i += 3) rules[i].count = static_cast<int32_t>(any());
  check_samples(rows, rules);
}

TEST_CASE("sample_rows draws by temperature, top_k, min_p and top_p", "[sanitizer][slow]") {
  const int64_t columns = GENERATE(1, 33, 700, 2049);
  const bool ties = GENERATE(false, true);
  std::mt19937_64 random(static_cast<uint64_t>(columns) * 2 + (ties ? 1 : 0));
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<std::vector<float>> rows;
  std::vector<SampleRule> rules;
  for (const float temperature : {0.1f, 0.7f, 1.0f, 3.0f}) {
    for (const int32_t top_k : {0, 1, 20}) {
      for (const float top_p : {1.0f, 0.9f, 0.31f}) {
        for (const float min_p : {0.0f, 0.02f}) {
          rows.push_back(ties ? steps(random, columns) : noise(random, columns));
          if (rules.size() % 7 == 3) rows.back()[0] = -kInfinity;
          rules.push_back(
              {.count = static_cast<int32_t>(columns - (rules.size() % 2 ? columns / 3 : 0)),
               .temperature = temperature,
               .top_k = top_k,
               .min_p = min_p,
               .top_p = top_p,
               .uniform = uniform(random)});
        }
      }
    }
  }
  check_samples(rows, rules);
}

TEST_CASE("sample_rows draws from the ends of a distribution, and from extreme ones",
          "[sanitizer]") {
  std::mt19937_64 random(5);
  constexpr int64_t kColumns = 1500;
  constexpr auto kCount = static_cast<int32_t>(kColumns);
  std::vector<std::vector<float>> rows;
  std::vector<SampleRule> rules;
  const auto add = [&](std::vector<float> row, SampleRule rule) {
    rule.count = kCount;
    rows.push_back(std::move(row));
    rules.push_back(rule);
  };
  std::vector<float> flat(kColumns, -2.0f), one(kColumns, -kInfinity), late(kColumns, -200.0f);
  one[777] = 3;
  late[1400] = 5;
  for (const double uniform : {0.0, 0.25, 0.5, 1 - 0x1p-53}) {
    add(noise(random, kColumns), {.temperature = 1, .uniform = uniform});
    add(flat, {.temperature = 1, .uniform = uniform});
    add(flat, {.temperature = 1, .top_p = 0.5f, .uniform = uniform});
    add(flat, {.temperature = 1, .top_k = 3, .top_p = 1e-9f, .uniform = uniform});
    add(one, {.temperature = 2, .top_p = 0.9f, .uniform = uniform});
    add(late, {.temperature = 1, .min_p = 1, .uniform = uniform});
    add(noise(random, kColumns), {.temperature = 1e-30f, .uniform = uniform});
    add(noise(random, kColumns), {.temperature = 1e30f, .top_p = 0.7f, .uniform = uniform});
  }
  rows[0][5] = kNaN;
  rows[1][1499] = kInfinity;
  rows[2].assign(kColumns, -kInfinity);
  check_samples(rows, rules);
}

}  // namespace
}  // namespace spillway::sampling_sample_test
