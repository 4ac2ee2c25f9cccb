// The inner loops of kernels/sampling/logits.h, in vectors of whatever this CPU has. Sums go to 16
// chains whatever the vectors' width, so that every CPU has the same bits. Pure functions, any
// thread.
#pragma once

#include <cstddef>

namespace spillway {

// Numbers that are added in float32 before the sums of blocks are, in float64.
constexpr size_t kRowBlock = 512;

struct PassBest {
  size_t block = 0;    // Begin of the first block that has the highest
  float value = 0;     // -inf if all are
  bool valid = false;  // No NaN, no +inf
};
PassBest pass_best(const float* row, size_t count);

// Of the numbers that are at least `floor`. REQUIRES (all that follow): no NaN.
double pass_sum(const float* row, size_t count, float floor);
size_t pass_count(const float* row, size_t count, float floor);

// Those below `floor` become 0.
void pass_drop_below(float* row, size_t count, float floor);

// Whether one equals `value`.
bool pass_contains(const float* row, size_t count, float value);

}  // namespace spillway
