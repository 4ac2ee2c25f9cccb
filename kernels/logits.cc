#include "kernels/logits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/exponentials.h"

namespace spillway {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 16;  // Independent chains, which the compiler turns into vectors.
constexpr size_t kBlock = 512;

struct BlockBest {
  float value;
  bool valid;  // No NaN, no +inf
};

BlockBest best_of_block(std::span<const float> values) {
  std::array<float, kLanes> best;
  std::array<int32_t, kLanes> invalid{};
  best.fill(-kInfinity);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      best[lane] = value > best[lane] ? value : best[lane];
      invalid[lane] |= value < kInfinity ? 0 : 1;
    }
  }
  for (; i < values.size(); ++i) {
    best[0] = values[i] > best[0] ? values[i] : best[0];
    invalid[0] |= values[i] < kInfinity ? 0 : 1;
  }
  return {*std::max_element(best.begin(), best.end()),
          *std::max_element(invalid.begin(), invalid.end()) == 0};
}

// The sum of the values that are at least `floor`.
double sum_of_block(std::span<const float> values, float floor) {
  std::array<float, kLanes> sums{};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += values[i + lane] >= floor ? values[i + lane] : 0.0f;
    }
  }
  double sum = 0;
  for (; i < values.size(); ++i) sum += values[i] >= floor ? values[i] : 0.0f;
  for (float lane : sums) sum += lane;
  return sum;
}

size_t count_from(std::span<const float> row, float floor) {
  std::array<uint32_t, kLanes> counts{};
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) counts[lane] += row[i + lane] >= floor ? 1 : 0;
  }
  size_t count = 0;
  for (; i < row.size(); ++i) count += row[i] >= floor ? 1 : 0;
  for (uint32_t lane : counts) count += lane;
  return count;
}

std::span<const float> block_at(std::span<const float> row, size_t begin) {
  return row.subspan(begin, std::min(kBlock, row.size() - begin));
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
  for (float value : row) {
    if (value <= floor && used >= count) continue;
    best[used++] = value;
    if (used == best.size()) drop_the_rest();
  }
  drop_the_rest();
  return floor;
}

}  // namespace

RowBest find_best(std::span<const float> row) {
  SPILLWAY_CHECK(!row.empty());
  RowBest best{0, -kInfinity, true};
  for (size_t begin = 0; begin < row.size(); begin += kBlock) {
    const BlockBest block = best_of_block(block_at(row, begin));
    best.valid = best.valid && block.valid;
    if (block.value <= best.value) continue;
    best.value = block.value;
    best.index = begin;
  }
  best.valid = best.valid && best.value > -kInfinity;
  if (best.valid) {  // A second look at one block, which the cache still has.
    while (row[best.index] != best.value) ++best.index;
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
  const auto reaches = [&](float value) { return count_from(row, value) >= count; };
  return highest_that(-kInfinity, find_best(row).value, reaches);
}

float threshold_of_sum(std::span<const float> weights, double sum, float low, float high) {
  const auto reaches = [&](float value) { return sum_from(weights, value) >= sum; };
  return highest_that(low, high, reaches);
}

double sum_from(std::span<const float> weights, float floor) {
  double sum = 0;
  for (size_t begin = 0; begin < weights.size(); begin += kBlock) {
    sum += sum_of_block(block_at(weights, begin), floor);
  }
  return sum;
}

size_t index_at(std::span<const float> weights, double amount) {
  for (size_t begin = 0; begin < weights.size(); begin += kBlock) {
    const std::span<const float> block = block_at(weights, begin);
    const double sum = sum_of_block(block, 0);
    if (amount >= sum) {
      amount -= sum;
      continue;
    }
    // One by one the weights may add up to a little less than `sum`; then the last one it is.
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
  std::array<float, kBlock> weights;
  for (size_t begin = 0; begin < row.size(); begin += kBlock) {
    const std::span<const float> block = block_at(row, begin);
    const std::span<float> target = std::span(weights).first(block.size());
    exponentiate(block, best.value, 1.0f, target);
    sum += sum_of_block(target, 0);
  }
  return best.value + std::log(sum);
}

}  // namespace spillway
