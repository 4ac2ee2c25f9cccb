// Exponentials of a row: most of the time that sampling takes, so the widest vectors of the machine
// compute them. Pure function, any thread.
#pragma once

#include <span>

namespace spillway {

// weights[i] = exp((row[i] - best) / temperature), to about 1e-6 of its value; 0 below e^-87, where
// floats end. `weights` may be `row`. REQUIRES: equal sizes, no NaN, best is finite and no logit is
// higher, temperature > 0.
void exponentiate(std::span<const float> row, float best, float temperature,
                  std::span<float> weights);

}  // namespace spillway
