#include "kernels/base/rotary.h"

#include <cmath>

#include "kernels/base/check.h"

namespace spillway {

std::vector<float> rotary_frequencies(double theta, int64_t dims) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < dims / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
    frequencies.push_back(1.0f / std::pow(static_cast<float>(theta), exponent));
  }
  return frequencies;
}

std::span<const float> frequencies_at(const Rotary& rotary, int64_t length,
                                      std::vector<float>* scratch) {
  if (length <= rotary.switch_length) return rotary.frequencies;
  if (!rotary.long_frequencies.empty()) return rotary.long_frequencies;
  if (rotary.dynamic_factor <= 0) return rotary.frequencies;
  const double factor = rotary.dynamic_factor;
  const double longer = static_cast<double>(length) / static_cast<double>(rotary.switch_length);
  const auto dims = static_cast<double>(rotary.dims);
  const double theta = rotary.theta * std::pow(factor * longer - (factor - 1), dims / (dims - 2));
  *scratch = rotary_frequencies(theta, rotary.dims);
  return *scratch;
}

void fill_rotary_row(std::span<const float> frequencies, float scale, int64_t position,
                     std::span<float> row) {
  const size_t half = frequencies.size();
  SPILLWAY_CHECK(row.size() == 2 * half);
  for (size_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    row[i] = std::cos(angle) * scale;
    row[half + i] = std::sin(angle) * scale;
  }
}

}  // namespace spillway
