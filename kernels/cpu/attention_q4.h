// A decode step over 4-bit rows of the cache (base/quantized.h, attention_codes.h). Expanding the
// rows first costs several times what reading them does.
//
//   q . k = sum over groups of step * (scale * sum(q n) + minimum * sum(q))
//   sum of w v = sum of (w scale) n + sum of w minimum
#pragma once

#include "kernels/cpu/attention_codes.h"

namespace spillway::cpu {

// In place of a query's floats: groups[0] up to groups[size / 64].
void round_q4_query(const float* q, size_t size, CodesQueryGroup* groups);

// scores[h][r] = q . k of all 16 rows of a run of keys and `heads` queries. Asks memory for as many
// bytes from `ahead` on as the run has.
void dot_q4_run(const std::byte* run, const std::byte* ahead, size_t size, size_t heads,
                const CodesQueryGroup* const* queries, float* const* scores);

// Adds the first `rows` rows of a run of values, times weights[h][r] >= 0 of 16 floats, to sums[h]
// [size], but for what their minima add, of which minima[h] [size / 64][16] has sums by row.
void sum_q4_run(const std::byte* run, const std::byte* ahead, size_t size, size_t rows,
                size_t heads, const float* const* weights, float* const* sums,
                float* const* minima);

// Adds the minima to the sums and puts these, which are in another order until then, in theirs.
void finish_q4_sums(const float* minima, size_t size, float* sums);

}  // namespace spillway::cpu
