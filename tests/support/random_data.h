// Seeded random numbers for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace spillway::test {

// `count` normal numbers with the given standard deviation.
inline std::vector<float> random_floats(int64_t count, uint64_t seed, float deviation = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Multiples of 2^-14 from -2 to 2, as numbers() of scripts/oracle/make_h2o_authors_golden.py makes
// them: both sides have the same bits.
inline std::vector<float> scripts_numbers(uint32_t seed, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    seed = 1664525 * seed + 1013904223;
    values.push_back(static_cast<float>(seed >> 16) / 16384 - 2);
  }
  return values;
}

// A prompt of one to `tokens_max` tokens.
inline std::vector<int32_t> random_prompt(std::mt19937_64& random, uint64_t tokens_max,
                                          int64_t vocabulary) {
  std::vector<int32_t> tokens(1 + random() % tokens_max);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary));
  }
  return tokens;
}

// The largest |a - b| relative to the largest |b| (1 when b is zero everywhere).
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    error = std::max(error, std::abs(double{a[i]} - b[i]));
    size = std::max(size, std::abs(double{b[i]}));
  }
  return size == 0 ? (error == 0 ? 0 : 1) : error / size;
}

}  // namespace spillway::test
