// Drawing an index from a row of logits: the rules, and the definition of sample_rows() that every
// device follows. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>

namespace spillway {

// Of a row's first `count` numbers x: those below the top_k-th highest are dropped (equal ones
// stay), the others weigh w = exp((x - highest) / temperature); weights below min_p are dropped;
// then the heaviest are kept until they have top_p of the weight (of equal ones the first). The
// index is the first at which the weights, added up in the order of the row, make more than
// `uniform` of their sum.
struct SampleRule {
  int32_t count = 0;  // 0: nothing is drawn
  float temperature =
      0;               // 0: the highest number, of equal ones the first, and nothing below counts
  int32_t top_k = 0;   // 0: off
  float min_p = 0;     // [0, 1]
  float top_p = 1;     // (0, 1]
  double uniform = 0;  // [0, 1)
};

// Turns the numbers into weights by the rule, whose count is not looked at. Returns their sum.
// REQUIRES: best is the highest and finite, no NaN, temperature > 0.
double weigh(std::span<float> numbers, float best, const SampleRule& rule);

// The index, or -1 when one of the first `count` numbers is NaN or +inf or none is above -inf; then
// the row is as it was, otherwise it may hold weights. REQUIRES: 0 <= count <= row.size().
int32_t sample(std::span<float> row, const SampleRule& rule);

}  // namespace spillway
