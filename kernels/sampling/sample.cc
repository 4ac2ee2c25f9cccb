#include "kernels/sampling/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/sampling/exponentials.h"
#include "kernels/sampling/logits.h"
#include "kernels/sampling/row_passes.h"

namespace spillway {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Keeps the heaviest weights until they have top_p of the sum; of equal ones the first. Returns the
// sum of the kept ones.
double keep_top_p(std::span<float> weights, float top_p) {
  const double sum = sum_from(weights, 0);
  const double wanted = static_cast<double>(top_p) * sum;
  // The weights below an equal share of the sum that may be dropped add up to less than that sum.
  // Half of it, so that rounding does not matter.
  const double low = (sum - wanted) / static_cast<double>(weights.size()) / 2;
  const float threshold = threshold_of_sum(weights, wanted, static_cast<float>(low), 1.0f);
  double kept = sum_from(weights, std::nextafter(threshold, kInfinity));
  pass_drop_below(weights.data(), weights.size(), threshold);
  for (size_t begin = 0; begin < weights.size(); begin += kRowBlock) {
    const auto block = weights.subspan(begin, std::min(kRowBlock, weights.size() - begin));
    if (!pass_contains(block.data(), block.size(), threshold)) continue;
    for (float& weight : block) {
      if (weight != threshold) continue;
      const bool keep = kept < wanted;
      kept += keep ? weight : 0.0f;
      weight = keep ? weight : 0.0f;
    }
  }
  return sum_from(weights, 0);
}

}  // namespace

double exponentiate_in_place(std::span<float> numbers, float best, const SampleRule& rule) {
  if (rule.top_k > 0 && static_cast<size_t>(rule.top_k) < numbers.size()) {
    const float lowest = threshold_of_count(numbers, static_cast<size_t>(rule.top_k));
    for (float& number : numbers) number = number < lowest ? -kInfinity : number;
  }
  exponentiate(numbers, best, rule.temperature, numbers);
  // min_p is a share of the best one's weight, which is 1. It may come after top_k instead of
  // before: both keep the best, whatever else there is.
  if (rule.min_p > 0) {
    for (float& weight : numbers) weight = weight < rule.min_p ? 0.0f : weight;
  }
  return rule.top_p < 1.0f ? keep_top_p(numbers, rule.top_p) : sum_from(numbers, 0);
}

int32_t sample(std::span<float> row, const SampleRule& rule) {
  SPILLWAY_CHECK(rule.count >= 0 && static_cast<size_t>(rule.count) <= row.size());
  if (rule.count == 0) return -1;
  const std::span<float> numbers = row.first(static_cast<size_t>(rule.count));
  const RowBest best = find_best(numbers);
  if (!best.valid) return -1;
  if (rule.temperature == 0) return static_cast<int32_t>(best.index);
  const double sum = exponentiate_in_place(numbers, best.value, rule);
  return static_cast<int32_t>(index_at(numbers, rule.uniform * sum));
}

}  // namespace spillway
