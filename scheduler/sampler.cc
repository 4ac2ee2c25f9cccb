#include "scheduler/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/sampling/logits.h"

namespace spillway {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool in_row(std::span<const float> logits, int32_t token) {
  return token >= 0 && static_cast<size_t>(token) < logits.size();
}

// A bijection that spreads every bit of `z` over all bits (the finalizer of SplitMix64).
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

Status invalid_logits(std::span<const float> logits) {
  const size_t bad = find_invalid(logits);
  if (bad == logits.size()) {
    return {Code::kCorruption, "no token can be drawn: all logits are -inf or barred"};
  }
  return {Code::kCorruption, "the logit of token " + std::to_string(bad) + " is " +
                                 (std::isnan(logits[bad]) ? "NaN" : "infinite") +
                                 "; weights or activations overflow, --format f32 may help"};
}

double uniform_sample(uint64_t seed, uint64_t step) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  // The seed is mixed first, or adjacent seeds would give the same numbers one step apart.
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

Result<int32_t> Sampler::next(std::span<float> logits, uint64_t step,
                              std::span<const int32_t> barred) {
  adjust(logits, barred);
  const int32_t token = sample(logits, rule(step, static_cast<int32_t>(logits.size())));
  if (token < 0) return invalid_logits(logits);
  count(token);
  return token;
}

SampleRule Sampler::rule(uint64_t step, int32_t vocabulary) const {
  return {.count = vocabulary,
          .temperature = params_.temperature,
          .top_k = params_.top_k,
          .min_p = params_.min_p,
          .top_p = params_.top_p,
          .uniform = params_.temperature == 0 ? 0 : uniform_sample(params_.seed, step)};
}

Status Sampler::probabilities(std::span<float> logits, std::span<const int32_t> barred) const {
  adjust(logits, barred);
  const RowBest best = find_best(logits);
  if (!best.valid) return invalid_logits(logits);
  if (params_.temperature == 0) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    logits[best.index] = 1.0f;
    return {};
  }
  const double sum = exponentiate_in_place(logits, best.value, rule(0, 0));
  for (float& weight : logits) weight = static_cast<float>(weight / sum);
  return {};
}

TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int32_t best) {
  SPILLWAY_CHECK(in_row(logits, token) && best >= 0);
  const double normaliser = log_sum_exp(logits);
  const auto logprob = [&](size_t id) { return static_cast<float>(logits[id] - normaliser); };
  TokenLogprobs result;
  const float own = logits[static_cast<size_t>(token)];
  result.logprob = logprob(static_cast<size_t>(token));
  result.rank = 1 + static_cast<int32_t>(std::count_if(logits.begin(), logits.end(),
                                                       [own](float logit) { return logit > own; }));
  const size_t count = std::min(static_cast<size_t>(best), logits.size());
  if (count == 0 || std::isnan(normaliser)) return result;
  result.best.reserve(count + 1);
  const float lowest = threshold_of_count(logits, count);
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] < lowest) continue;
    // Ids come in ascending order, so a tie goes behind.
    const auto place = std::upper_bound(result.best.begin(), result.best.end(), logprob(id),
                                        [](float a, const auto& b) { return a > b.second; });
    result.best.emplace(place, static_cast<int32_t>(id), logprob(id));
    if (result.best.size() > count) result.best.pop_back();
  }
  return result;
}

}  // namespace spillway
