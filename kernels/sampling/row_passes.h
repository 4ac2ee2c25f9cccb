// The inner loops of kernels/sampling/logits.h, in the widest vectors of this CPU. Sums have 16
// chains whatever the vectors' width, so that every CPU gives the same bits. Pure functions, any
// thread.
#pragma once

#include <cstddef>

namespace spillway {

// Numbers per block: a block is summed in float32, the sums of blocks in float64.
constexpr size_t kRowBlock = 512;

struct PassBest {
  size_t block = 0;    // Begin of the first block with the highest value
  float value = 0;     // -inf if all are
  bool valid = false;  // No NaN, no +inf
};
PassBest pass_best(const float* row, size_t count);

// Sum and count of the numbers that are at least `floor`. REQUIRES (all that follow): no NaN.
double pass_sum(const float* row, size_t count, float floor);
size_t pass_count(const float* row, size_t count, float floor);

// Numbers below `floor` become 0.
void pass_drop_below(float* row, size_t count, float floor);

// Whether a number equals `value`.
bool pass_contains(const float* row, size_t count, float value);

}  // namespace spillway
