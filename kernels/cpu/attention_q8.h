// A decode step over 8-bit rows of the cache (attention_codes.h):
//
//   q . k = scale of the row * sum over groups of step * sum(q n)
#pragma once

#include "kernels/cpu/attention_codes.h"

namespace spillway::cpu {

// In place of a query's floats: groups[0] up to groups[size / 64].
void round_q8_query(const float* q, size_t size, CodesQueryGroup* groups);

// scores[h][r] = q . k of all 16 rows of a run of keys and `heads` queries. Asks memory for as many
// bytes from `ahead` on as the run has.
void dot_q8_run(const std::byte* run, const std::byte* ahead, size_t size, size_t heads,
                const CodesQueryGroup* const* queries, float* const* scores);

// Adds the first `rows` rows of a run of values, times weights[h][r] >= 0 of 16 floats, to sums[h]
// [size], whose numbers are in another order until order_q8_sums(). At most 32 heads.
void sum_q8_run(const std::byte* run, const std::byte* ahead, size_t size, size_t rows,
                size_t heads, const float* const* weights, float* const* sums);
void order_q8_sums(size_t size, float* sums);

}  // namespace spillway::cpu
