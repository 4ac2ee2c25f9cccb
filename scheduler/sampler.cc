#include "scheduler/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/exponentials.h"
#include "scheduler/logits.h"

namespace spillway {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool in_row(std::span<const float> logits, int32_t token) {
  return token >= 0 && static_cast<size_t>(token) < logits.size();
}

Status no_token_error(std::span<const float> logits) {
  const size_t bad = find_invalid(logits);
  if (bad == logits.size()) {
    return {Code::kCorruption, "no token can be drawn: all logits are -inf or barred"};
  }
  return {Code::kCorruption, "the logit of token " + std::to_string(bad) + " is " +
                                 (std::isnan(logits[bad]) ? "NaN" : "infinite") +
                                 "; weights or activations overflow, --format f32 may help"};
}

// A bijection that spreads every bit of `z` over all bits (the finalizer of SplitMix64).
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

double uniform_draw(uint64_t seed, uint64_t step) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  // The seed is mixed first, or neighbouring seeds would give the same numbers a step apart.
  const uint64_t bits = mix(mix(seed + kGolden) + (step + 1) * kGolden);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Sampler::Sampler(SamplingParams params, std::span<const int32_t> prompt, int64_t tokens_max)
    : params_(std::move(params)),
      penalises_(params_.repetition_penalty != 1.0f || params_.presence_penalty != 0.0f ||
                 params_.frequency_penalty != 0.0f) {
  SPILLWAY_CHECK(tokens_max >= 0);
  if (!penalises_) return;
  std::vector<int32_t> seen(prompt.begin(), prompt.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  counts_.reserve(seen.size() + static_cast<size_t>(tokens_max));
  for (int32_t token : seen) counts_.push_back({token, 0});
}

void Sampler::count(int32_t token) {
  if (!penalises_) return;
  const auto place = std::lower_bound(counts_.begin(), counts_.end(), token,
                                      [](const Count& a, int32_t b) { return a.token < b; });
  if (place != counts_.end() && place->token == token) {
    ++place->generated;
  } else {
    counts_.insert(place, {token, 1});
  }
}

void Sampler::adjust(std::span<float> logits, std::span<const int32_t> barred) const {
  for (const auto& [token, bias] : params_.logit_bias) {
    if (in_row(logits, token)) logits[static_cast<size_t>(token)] += bias;
  }
  for (const Count& seen : counts_) {
    if (!in_row(logits, seen.token)) continue;
    float& logit = logits[static_cast<size_t>(seen.token)];
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    if (seen.generated == 0) continue;
    logit -= params_.frequency_penalty * static_cast<float>(seen.generated);
    logit -= params_.presence_penalty;
  }
  for (int32_t token : barred) {
    if (in_row(logits, token)) logits[static_cast<size_t>(token)] = -kInfinity;
  }
}

// Turns logits into weights: what is left of each token's probability, up to a common factor.
// Returns their sum.
double Sampler::weigh(std::span<float> logits, float best) const {
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < logits.size()) {
    const float lowest = threshold_of_count(logits, static_cast<size_t>(params_.top_k));
    for (float& logit : logits) logit = logit < lowest ? -kInfinity : logit;
  }
  exponentiate(logits, best, params_.temperature, logits);
  // min_p is a share of the best token's weight, which is 1. It may come after top_k instead of
  // before: both keep the best, whatever else there is.
  if (params_.min_p > 0) {
    for (float& weight : logits) weight = weight < params_.min_p ? 0.0f : weight;
  }
  return params_.top_p < 1.0f ? keep_top_p(logits) : sum_from(logits, 0);
}

// Keeps the heaviest tokens until they have top_p of the weight; of equal ones the first. Returns
// the sum of what is left.
double Sampler::keep_top_p(std::span<float> weights) const {
  const double sum = sum_from(weights, 0);
  const double wanted = static_cast<double>(params_.top_p) * sum;
  // All weights below an equal share of what may go are less than that together. Half of it, so
  // that rounding does not matter.
  const double low = (sum - wanted) / static_cast<double>(weights.size()) / 2;
  const float threshold = threshold_of_sum(weights, wanted, static_cast<float>(low), 1.0f);
  double kept = sum_from(weights, std::nextafter(threshold, kInfinity));
  for (float& weight : weights) {
    if (weight > threshold) continue;
    const bool keep = weight == threshold && kept < wanted;
    kept += keep ? weight : 0.0f;
    weight = keep ? weight : 0.0f;
  }
  return sum_from(weights, 0);
}

Result<int32_t> Sampler::next(std::span<float> logits, uint64_t step,
                              std::span<const int32_t> barred) {
  adjust(logits, barred);
  const RowBest best = find_best(logits);
  if (!best.valid) return no_token_error(logits);
  size_t token = best.index;
  if (params_.temperature != 0) {
    const double sum = weigh(logits, best.value);
    token = index_at(logits, uniform_draw(params_.seed, step) * sum);
  }
  count(static_cast<int32_t>(token));
  return static_cast<int32_t>(token);
}

Status Sampler::probabilities(std::span<float> logits, std::span<const int32_t> barred) const {
  adjust(logits, barred);
  const RowBest best = find_best(logits);
  if (!best.valid) return no_token_error(logits);
  if (params_.temperature == 0) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    logits[best.index] = 1.0f;
    return {};
  }
  const double sum = weigh(logits, best.value);
  for (float& weight : logits) weight = static_cast<float>(weight / sum);
  return {};
}

TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int32_t best) {
  SPILLWAY_CHECK(in_row(logits, token) && best >= 0);
  const double normaliser = log_sum_exp(logits);
  const auto logprob = [&](size_t id) { return static_cast<float>(logits[id] - normaliser); };
  TokenLogprobs result;
  result.logprob = logprob(static_cast<size_t>(token));
  const size_t count = std::min(static_cast<size_t>(best), logits.size());
  if (count == 0 || std::isnan(normaliser)) return result;
  result.best.reserve(count + 1);
  const float lowest = threshold_of_count(logits, count);
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] < lowest) continue;
    // Ids come in ascending order, so an equal one goes behind.
    const auto place = std::upper_bound(result.best.begin(), result.best.end(), logprob(id),
                                        [](float a, const auto& b) { return a > b.second; });
    result.best.emplace(place, static_cast<int32_t>(id), logprob(id));
    if (result.best.size() > count) result.best.pop_back();
  }
  return result;
}

}  // namespace spillway
