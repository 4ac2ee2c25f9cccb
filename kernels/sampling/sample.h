// Sampling an index from a row of logits: the rules, and the definition of sample_rows() that every
// device follows. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>

namespace spillway {

// Rule for a row's first `count` numbers x: numbers below the top_k-th highest are dropped (equal
// ones stay), the others get the weight w = exp((x - highest) / temperature); weights below min_p
// are dropped; then the heaviest are kept until they have top_p of the weight (of equal ones the
// first). The sampled index is the first at which the weights, added up in the order of the row,
// make more than `uniform` of their sum.
struct SampleRule {
  int32_t count = 0;      // 0: nothing is sampled
  float temperature = 0;  // 0: greedy (ties: the first), fields below are ignored
  int32_t top_k = 0;      // 0: off
  float min_p = 0;        // [0, 1]
  float top_p = 1;        // (0, 1]
  double uniform = 0;     // [0, 1)
};

// Exponentiates the numbers in place into weights by the rule, whose count is ignored. Returns
// their sum. REQUIRES: best is the highest and finite, no NaN, temperature > 0.
double exponentiate_in_place(std::span<float> numbers, float best, const SampleRule& rule);

// The sampled index, or -1 when one of the first `count` numbers is NaN or +inf or none is above
// -inf; then the row is unchanged, otherwise it may hold weights. REQUIRES: 0 <= count <=
// row.size().
int32_t sample(std::span<float> row, const SampleRule& rule);

}  // namespace spillway
