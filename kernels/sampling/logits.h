// Passes over one row of logits or weights: each reads the row front to back, allocates nothing and
// sorts nothing. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <span>

namespace spillway {

struct RowBest {
  size_t index = 0;    // Index of the highest value; ties: the first
  float value = 0;     // -inf if all are
  bool valid = false;  // No NaN, no +inf, and one value above -inf
};

// REQUIRES: at least one value.
RowBest find_best(std::span<const float> row);

// The index of the first value that is NaN or +inf; row.size() if there is none.
size_t find_invalid(std::span<const float> row);

// The count-th highest value. REQUIRES: 1 <= count <= row.size(), no NaN.
float threshold_of_count(std::span<const float> row, size_t count);

// The highest value from `low` to `high` with sum_from(weights, value) >= sum; `low` if none has.
// REQUIRES: no NaN, low <= high.
float threshold_of_sum(std::span<const float> weights, double sum, float low, float high);

// The sum of the weights that are at least `floor`. REQUIRES: no NaN.
double sum_from(std::span<const float> weights, float floor);

// The first index whose weight, added to those before it, makes more than `amount`. REQUIRES: no
// negative weight, one above 0, 0 <= amount < sum_from(weights, 0).
size_t index_at(std::span<const float> weights, double amount);

// log(sum(exp(row))), summed in double precision; NaN unless find_best() calls the row valid.
// REQUIRES: at least one value.
double log_sum_exp(std::span<const float> row);

}  // namespace spillway
