// The sampler: the distribution it draws from against transformers and a plain reference, the draw
// itself, and what it refuses.
#include "scheduler/sampler.h"
#include "tests/support/places.h"
#include "tests/support/skip.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

namespace spillway::sampler_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

int32_t pick(Sampler& sampler, std::vector<float> logits, uint64_t step = 0,
             std::vector<int32_t> barred = {}) {
  return sampler.next(logits, step, barred).value();
}

// Makes the sampler generate `token`: no other is possible.
void generate(Sampler& sampler, int32_t token, size_t vocabulary) {
  std::vector<float> logits(vocabulary, -kInfinity);
  logits[static_cast<size_t>(token)] = 0;
  REQUIRE(pick(sampler, logits) == token);
}

// The rules in the plainest way: everything in double, sorted as a whole.
std::vector<double> reference(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<double> weights(logits.size());
  const double best = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp((logits[i] - best) / params.temperature);
    if (weights[i] < params.min_p) weights[i] = 0;
  }
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < order.size()) {
    const float lowest = logits[order[static_cast<size_t>(params.top_k) - 1]];
    for (size_t i : order) {
      if (logits[i] < lowest) weights[i] = 0;  // Equal ones stay.
    }
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  for (size_t i : order) {
    if (params.top_p < 1 && kept >= static_cast<double>(params.top_p) * sum) weights[i] = 0;
    kept += weights[i];
  }
  for (double& weight : weights) weight /= kept;
  return weights;
}

TEST_CASE("distributions are those of transformers") {
  std::ifstream file(test::source_directory() + "/tests/golden/sampling.json");
  if (!file) {
    return test::skip("no tests/golden/sampling.json");
  }
  const auto golden = nlohmann::json::parse(file);
  size_t cases = 0;
  for (const auto& entry : golden["cases"]) {
    INFO(entry["name"]);
    SamplingParams params;
    params.temperature = entry["temperature"];
    params.top_k = entry["top_k"];
    params.top_p = entry["top_p"];
    params.min_p = entry["min_p"];
    params.repetition_penalty = entry["repetition_penalty"];
    params.presence_penalty = entry["presence_penalty"];
    params.frequency_penalty = entry["frequency_penalty"];
    for (const auto& [token, bias] : entry["logit_bias"].items()) {
      params.logit_bias.emplace_back(std::stoi(token), bias.get<float>());
    }
    auto logits = entry["logits"].get<std::vector<float>>();
    const auto output = entry["output"].get<std::vector<int32_t>>();
    Sampler sampler(params, entry["prompt"].get<std::vector<int32_t>>(),
                    static_cast<int64_t>(output.size()));
    for (int32_t token : output) generate(sampler, token, logits.size());
    REQUIRE(sampler.probabilities(logits, {}).ok());
    const auto expected = entry["probabilities"].get<std::vector<float>>();
    for (size_t i = 0; i < expected.size(); ++i) {
      INFO("token " << i);
      CHECK(logits[i] == Approx(expected[i]).margin(1e-5).epsilon(1e-5));
      CHECK((logits[i] > 1e-30f) == (expected[i] > 1e-30f));
    }
    ++cases;
  }
  CHECK(cases >= 50);
}

TEST_CASE("distributions are those of a plain reference, also with many equal logits") {
  const unsigned seed = 20240607;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform;
  const auto chance = [&](float p) { return uniform(random) < p; };
  for (int round = 0; round < 600; ++round) {
    SamplingParams params;
    params.temperature = 0.2f + 2 * uniform(random);
    std::vector<float> logits(1 + random() % (round % 10 == 0 ? 3000 : 40));
    if (chance(0.5f)) params.top_k = static_cast<int32_t>(random() % (2 * logits.size()));
    if (chance(0.5f)) params.top_p = 0.01f + 0.98f * uniform(random);
    if (chance(0.3f)) params.min_p = uniform(random) * uniform(random);
    const float scale = chance(0.5f) ? 1.0f : 4.0f;
    const bool coarse = chance(0.5f);  // bfloat16 logits are often equal.
    for (float& logit : logits) {
      logit = scale * std::normal_distribution<float>()(random);
      if (coarse) logit = std::round(logit);
      if (chance(0.05f)) logit = -kInfinity;
    }
    logits[random() % logits.size()] = 3 * scale;
    INFO("round " << round << ": " << logits.size() << " logits, temperature " << params.temperature
                  << ", top_k " << params.top_k << ", top_p " << params.top_p << ", min_p "
                  << params.min_p);
    const std::vector<double> expected = reference(logits, params);
    std::vector<float> found = logits;
    REQUIRE(Sampler(params, {}, 0).probabilities(found, {}).ok());
    double difference = 0;
    size_t turned = 0;  // Where rounding decides whether the last token of top_p stays.
    for (size_t i = 0; i < expected.size(); ++i) {
      difference = std::max(difference, std::abs(expected[i] - static_cast<double>(found[i])));
      turned += (expected[i] > 1e-30) != (found[i] > 1e-30f) ? 1 : 0;
    }
    if (turned == 0) REQUIRE(difference < 1e-5);
    REQUIRE(turned <= 1);
  }
}

TEST_CASE("greedy takes the highest logit, the lowest id of equal ones, wherever it is") {
  Sampler sampler(greedy(), {}, 100000);
  for (size_t size : {1, 15, 16, 17, 511, 512, 513, 2000}) {
    for (size_t at : {size_t{0}, size / 3, size / 2, size - 1}) {
      std::vector<float> logits(size, -3.0f);
      logits[at] = -2.0f;
      CHECK(pick(sampler, logits) == static_cast<int32_t>(at));
      logits.back() = -2.0f;
      CHECK(pick(sampler, logits) == static_cast<int32_t>(at));
    }
    CHECK(pick(sampler, std::vector<float>(size, 0.5f)) == 0);
  }
  std::vector<float> row = {1, 5, 2};
  const std::vector<float> before = row;
  REQUIRE(sampler.next(row, 0, {}).value() == 1);
  CHECK(row == before);  // Nothing is written without a rule that asks for it.
}

TEST_CASE("greedy counts penalties and biases in") {
  SamplingParams params = greedy();
  params.repetition_penalty = 2.0f;
  const std::vector<int32_t> prompt = {0, 0};
  Sampler sampler(params, prompt, 8);
  CHECK(pick(sampler, {3, 2, 1, 1}) == 1);      // 1.5: the prompt has token 0.
  CHECK(pick(sampler, {3, 2, 1.2f, 1}) == 0);   // 1.5, and now 1 for token 1
  CHECK(pick(sampler, {-3, -2, -5, -9}) == 1);  // Negative logits are multiplied.
  params = greedy();
  params.logit_bias = {{2, 10.0f}, {7, 5.0f}, {-1, 5.0f}};  // Ids that do not exist do nothing.
  Sampler biased(params, {}, 8);
  CHECK(pick(biased, {3, 2, 1, 1}) == 2);
}

TEST_CASE("frequency counts every time a token was generated, presence only the first") {
  SamplingParams params = greedy();
  params.frequency_penalty = 0.5f;
  params.presence_penalty = 1.0f;
  const std::vector<int32_t> prompt = {0, 1, 2};  // Counts for neither.
  Sampler sampler(params, prompt, 8);
  const std::vector<float> logits = {4, 2.8f, 2.2f};
  std::vector<int32_t> tokens;
  for (int i = 0; i < 4; ++i) tokens.push_back(pick(sampler, logits));
  // 4; then 2.5 against 2.8; then 2.5 against 1.3 and 2.2; then 2.0 against 1.3 and 2.2.
  CHECK(tokens == std::vector<int32_t>{0, 1, 0, 2});
}

TEST_CASE("barred tokens are never drawn") {
  Sampler sampler(greedy(), {}, 8);
  CHECK(pick(sampler, {3, 2, 1}, 0, {0, -1, 3, 70000}) == 1);
  Sampler drawing(SamplingParams(), {}, 8);
  for (uint64_t step = 0; step < 100; ++step) CHECK(pick(drawing, {9, 1, 1}, step, {0}) != 0);
}

TEST_CASE("a broken row is an error that says where") {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    Sampler sampler(params, {}, 8);
    const auto error = [&](std::vector<float> row, std::vector<int32_t> barred = {}) {
      const Status status = sampler.next(row, 0, barred).status();
      CHECK(status.code() == Code::kCorruption);
      return std::string(status.message());
    };
    std::vector<float> row(1000, 0.0f);
    row[777] = kNaN;
    CHECK_THAT(error(row), Catch::Contains("token 777 is NaN"));
    row[16] = kInfinity;
    CHECK_THAT(error(row), Catch::Contains("token 16 is infinite"));
    CHECK_THAT(error({kNaN}), Catch::Contains("token 0 is NaN"));
    CHECK_THAT(error({1.0f, 2.0f}, {0, 1}), Catch::Contains("all logits are -inf or barred"));
    CHECK_THAT(error(std::vector<float>(600, -kInfinity)), Catch::Contains("all logits"));
    CHECK(pick(sampler, {-kInfinity, -5.0f, -kInfinity}) == 1);
  }
}

TEST_CASE("extreme parameters leave a distribution") {
  for (float temperature : {1e-45f, 1e-30f, 1e30f}) {
    SamplingParams params;
    params.temperature = temperature;
    params.top_p = 1e-30f;
    params.top_k = 1 << 30;
    Sampler sampler(params, {}, 8);
    CHECK(pick(sampler, {1, 3, 2, -kInfinity, -1e30f}) == (temperature < 1 ? 1 : 0));
  }
}

TEST_CASE("draws follow the distribution") {
  SamplingParams params;
  params.seed = 42;
  Sampler sampler(params, {}, 0);
  // More than one block of the row, and weights in several of them.
  std::vector<float> logits(1500, -kInfinity);
  const std::map<int32_t, double> shares = {
      {3, 0.5}, {500, 0.25}, {511, 0.125}, {512, 0.1}, {1499, 0.025}};
  for (const auto& [token, share] : shares) {
    logits[static_cast<size_t>(token)] = static_cast<float>(std::log(share));
  }
  std::map<int32_t, int> counts;
  constexpr int kSamples = 40000;
  for (int step = 0; step < kSamples; ++step) {
    ++counts[pick(sampler, logits, static_cast<uint64_t>(step))];
  }
  double chi_square = 0;
  for (const auto& [token, share] : shares) {
    const double expected = share * kSamples;
    chi_square += (counts[token] - expected) * (counts[token] - expected) / expected;
  }
  CHECK(counts.size() == shares.size());
  CHECK(chi_square < 18.5);  // 4 degrees of freedom: 99.9 %
}

TEST_CASE("a draw depends on seed and step alone") {
  CHECK(uniform_sample(0, 0) == uniform_sample(0, 0));
  CHECK(uniform_sample(0, 0) != uniform_sample(0, 1));
  CHECK(uniform_sample(0, 1) != uniform_sample(1, 0));
  // Computed apart from this code: SplitMix64 started at its own hash of the seed. The same on
  // every machine and in every version, or seeds lose their meaning.
  CHECK(uniform_sample(7, 0) == 0.7215081806049702);
  CHECK(uniform_sample(7, 1) == 0.6497043364684557);
  double sum = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (uint64_t step = 0; step < 100; ++step) {
      const double sample = uniform_sample(seed, step);
      REQUIRE(sample >= 0);
      REQUIRE(sample < 1);
      sum += sample;
    }
  }
  CHECK(sum / 10000 == Approx(0.5).margin(0.015));

  SamplingParams params;
  params.seed = 9;
  const std::vector<float> logits(97, 1.0f);
  Sampler forward(params, {}, 0);
  Sampler backward(params, {}, 0);
  std::vector<int32_t> ahead, behind;
  for (uint64_t step = 0; step < 20; ++step) ahead.push_back(pick(forward, logits, step));
  for (uint64_t step = 20; step-- > 0;) behind.push_back(pick(backward, logits, step));
  std::reverse(behind.begin(), behind.end());
  CHECK(ahead == behind);
}

TEST_CASE("logprobs are the log of the softmax, the best sorted") {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, -kInfinity};
  const double sum = std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0);
  const TokenLogprobs found = token_logprobs(logits, 2, 3);
  CHECK(found.logprob == Approx(2 - std::log(sum)).epsilon(1e-6));
  CHECK(found.rank == 3);
  CHECK(token_logprobs(logits, 3, 0).rank == 1);
  CHECK(token_logprobs(logits, 4, 0).rank == 5);
  REQUIRE(found.best.size() == 3);
  CHECK(found.best[0].first == 1);  // Of equal ones the lower id
  CHECK(found.best[1].first == 3);
  CHECK(found.best[2].first == 2);
  CHECK(found.best[0].second == Approx(3 - std::log(sum)).epsilon(1e-6));
  CHECK(token_logprobs(logits, 4, 0).logprob == -kInfinity);
  CHECK(token_logprobs(logits, 4, 0).best.empty());
  CHECK(token_logprobs(logits, 0, 99).best.size() == 5);
  CHECK(std::isnan(token_logprobs(std::vector<float>{1.0f, kNaN}, 0, 2).logprob));
  // Far from zero, where exp() alone would overflow.
  CHECK(token_logprobs(std::vector<float>{9000, 9000}, 0, 1).logprob ==
        Approx(-std::log(2.0)).epsilon(1e-3));
}

TEST_CASE("the best of a long row are those of sorting it") {
  std::mt19937 random(5);
  std::vector<float> logits(5000);
  for (float& logit : logits) {
    logit = std::round(64 * std::normal_distribution<float>()(random)) / 64;
  }
  if (GENERATE(true, false)) std::sort(logits.begin(), logits.end());  // The worst order there is
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit));
  for (int32_t best : {1, 20, 127, 128, 129, 600, 5000}) {
    INFO("best " << best);
    const TokenLogprobs found = token_logprobs(logits, 17, best);
    CHECK(found.logprob == Approx(logits[17] - std::log(sum)).epsilon(1e-6));
    REQUIRE(found.best.size() == static_cast<size_t>(best));
    for (size_t i = 0; i < found.best.size(); ++i) REQUIRE(found.best[i].first == order[i]);
  }
}

}  // namespace
}  // namespace spillway::sampler_test
