// A decode step over 4-bit rows of the cache (base/quantized.h) as they lie there, by AVX-512 VNNI:
// a run of 16 rows, for all query heads that share them. Heads of whole groups alone, that is of a
// multiple of 64 numbers. Expanding the rows first costs several times what reading them does.
//
//   q . k = sum over groups of scale * sum(q n) + minimum * sum(q)
//
// In each group the query is rounded to an integer of 24 bits, that is to float32's precision
// beside the group's largest number, and taken as three planes of signed bytes: sums of integers
// are exact, in any order. Values are summed in float32, row after row:
//
//   sum of w v = sum of (w scale) n + sum of w minimum
//
// A head's bits do not depend on the heads beside it. NaN in a query or a group stays NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/quantized.h"

namespace spillway::cpu {

// Whether this CPU and head size are as above.
bool attends_packed_q4(int64_t head_size);

constexpr size_t kQ4Group = QuantTraits<Format::kQ4>::kGroup;

// A query's numbers of one group: step * (65536 planes[0] + 256 planes[1] + planes[2]), four signed
// bytes a word: those that go with the even nibbles of each word of codes, then with the odd ones.
struct Q4QueryGroup {
  uint32_t planes[3][kQ4Group / 4];
  float step, sum;  // Of the integers
};

// In place of a query's floats, which it fits: groups[0] up to groups[size / 64].
static_assert(sizeof(Q4QueryGroup) <= kQ4Group * sizeof(float));
void round_q4_query(const float* q, size_t size, Q4QueryGroup* groups);

// scores[h][r] = q . k of all 16 rows of a run of keys and `heads` queries.
void dot_q4_run(const std::byte* run, size_t size, size_t heads, const Q4QueryGroup* const* queries,
                float* const* scores);

// Adds the first `rows` rows of a run of values, times weights[h][r] of 16 floats, to sums[h]
// [size], but for what their minima add, of which minima[h] [size / 64][16] has sums by row.
void sum_q4_run(const std::byte* run, size_t size, size_t rows, size_t heads,
                const float* const* weights, float* const* sums, float* const* minima);

// Adds the minima to the sums.
void add_q4_minima(const float* minima, size_t size, float* sums);

}  // namespace spillway::cpu
