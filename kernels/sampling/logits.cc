#include "kernels/sampling/logits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/sampling/exponentials.h"
#include "kernels/sampling/row_passes.h"

namespace spillway {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::span<const float> block_at(std::span<const float> row, size_t begin) {
  return row.subspan(begin, std::min(kRowBlock, row.size() - begin));
}

// An unsigned number that orders as the float does, and its inverse.
uint32_t order_key(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float value_of_key(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

// The highest value from `low` to `high` that `reaches` its goal; `low` if none does. At most 32
// passes of a few microseconds each, where sorting takes milliseconds and a copy of the row.
template <class Reaches>
float highest_that(float low, float high, Reaches reaches) {
  uint32_t yes = order_key(low);
  uint32_t no = order_key(high) + 1;
  while (no - yes > 1) {
    const uint32_t middle = yes + (no - yes) / 2;
    (reaches(value_of_key(middle)) ? yes : no) = middle;
  }
  return value_of_key(yes);
}

// For few values a buffer of the best so far is quicker: hardly any value gets past its lowest.
constexpr size_t kFew = 128;

float threshold_of_few(std::span<const float> row, size_t count) {
  std::array<float, 4 * kFew> best;
  size_t used = 0;
  float floor = -kInfinity;
  const auto drop_the_rest = [&] {
    std::nth_element(best.begin(), best.begin() + (count - 1), best.begin() + used,
                     std::greater<>());
    used = count;
    floor = best[count - 1];
  };
  for (size_t begin = 0; begin < row.size(); begin += kRowBlock) {
    const std::span<const float> block = block_at(row, begin);
    if (used >= count && pass_best(block.data(), block.size()).value <= floor) continue;
    for (float value : block) {
      if (value <= floor && used >= count) continue;
      best[used++] = value;
      if (used == best.size()) drop_the_rest();
    }
  }
  drop_the_rest();
  return floor;
}

}  // namespace

RowBest find_best(std::span<const float> row) {
  SPILLWAY_CHECK(!row.empty());
  const PassBest found = pass_best(row.data(), row.size());
  RowBest best{found.block, found.value, found.valid && found.value > -kInfinity};
  if (best.valid) {  // A second look at one block, which the cache still has.
    const float* const value = row.data();
    while (value[best.index] != best.value) ++best.index;
  }
  return best;
}

size_t find_invalid(std::span<const float> row) {
  const auto found =
      std::find_if(row.begin(), row.end(), [](float value) { return !(value < kInfinity); });
  return static_cast<size_t>(found - row.begin());
}

float threshold_of_count(std::span<const float> row, size_t count) {
  SPILLWAY_CHECK(count >= 1 && count <= row.size());
  if (count <= kFew) return threshold_of_few(row, count);
  const auto reaches = [&](float value) {
    return pass_count(row.data(), row.size(), value) >= count;
  };
  return highest_that(-kInfinity, find_best(row).value, reaches);
}

float threshold_of_sum(std::span<const float> weights, double sum, float low, float high) {
  const auto reaches = [&](float value) { return sum_from(weights, value) >= sum; };
  return highest_that(low, high, reaches);
}

double sum_from(std::span<const float> weights, float floor) {
  return pass_sum(weights.data(), weights.size(), floor);
}

size_t index_at(std::span<const float> weights, double amount) {
  for (size_t begin = 0; begin < weights.size(); begin += kRowBlock) {
    const std::span<const float> block = block_at(weights, begin);
    const double sum = sum_from(block, 0);
    if (amount >= sum) {
      amount -= sum;
      continue;
    }
    // One by one the weights may add up to a little less than `sum`; then the last one is taken.
    size_t last = begin;
    for (size_t i = 0; i < block.size() && amount >= 0; ++i) {
      if (block[i] == 0) continue;
      last = begin + i;
      amount -= block[i];
    }
    return last;
  }
  // Rounding again, this time of the sums of blocks.
  size_t last = weights.size() - 1;
  while (last > 0 && weights[last] == 0) --last;
  return last;
}

double log_sum_exp(std::span<const float> row) {
  const RowBest best = find_best(row);
  if (!best.valid) return std::nan("");
  double sum = 0;
  std::array<float, kRowBlock> weights;
  for (size_t begin = 0; begin < row.size(); begin += kRowBlock) {
    const std::span<const float> block = block_at(row, begin);
    const std::span<float> target = std::span(weights).first(block.size());
    exponentiate(block, best.value, 1.0f, target);
    sum += sum_from(target, 0);
  }
  return best.value + std::log(sum);
}

}  // namespace spillway
