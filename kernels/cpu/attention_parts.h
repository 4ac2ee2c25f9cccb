// Decode steps over many rows: parts of them are attended to each by itself, by several threads if
// there are too few sequences for all, and joined in their order (Dao et al. 2023, "Flash-Decoding
// for long-context inference").
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_body.h"

namespace spillway::cpu {

// Rows of a part. They are cut there whoever computes them, so that a token's bits do not depend on
// threads; 1024 rows take ten microseconds a head and more, far longer than a task costs.
constexpr int64_t kPartRows = 1024;
static_assert(kPartRows % kKvBlockRows == 0);

constexpr int64_t parts_of_rows(int64_t rows) {
  return (rows + kPartRows - 1) / kPartRows;
}

// Most bytes of the parts that are tasks of their own; further ones are computed one after another.
// As much as linear() has for its inputs: ops share it.
constexpr size_t kSpreadPartsBytesMax = size_t{4} << 20;

// Bytes of `heads` heads' sums: of the parts before, and of one.
constexpr size_t part_sums_bytes(int64_t head_size, int64_t heads) {
  return 2 * static_cast<size_t>(heads * head_size) * sizeof(float);
}

// Joins a further part of one head to those before it: `sums` [size] to `all_sums`.
void join_part(const StepPart& part, const float* sums, size_t size, StepPart* all,
               float* all_sums);

// A head's output from all parts, stored in the view's format. One part gives the bits of a step
// that is not cut. Changes `all_sums`.
void store_joined(const HeadView& view, const StepPart& all, float* all_sums);

}  // namespace spillway::cpu
