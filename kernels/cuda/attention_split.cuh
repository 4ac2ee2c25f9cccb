// What the bodies of decode attention share: a sequence's rows are cut into splits, each of which a
// block of threads attends to; a last kernel puts the splits together ("Flash-Decoding", Dao et al.
// 2023).
#pragma once

#include "kernels/cuda/attention.cuh"

namespace spillway::cuda {

// Rows per block. Fixed, so that a sequence's sums are added in the same order whatever runs beside
// it.
constexpr int64_t kSplitRows = 256;

// Partial results of a call's blocks for the last kernel, in scratch.
struct Partials {
  // [items][heads][splits][2 + head_size]: a split's maximum, its sum of exp(score - maximum), and
  // its values weighted by these.
  float* splits;
  int64_t split_count;
  float* scores;  // [items][heads][rows], for budgets by score; else null
  int64_t rows;

  __device__ float* split(const AttentionOnDevice& a, int64_t item, int64_t head,
                          int64_t index) const {
    return splits + ((item * a.heads + head) * split_count + index) * (2 + a.head_size);
  }
  __device__ float* row_scores(const AttentionOnDevice& a, int64_t item, int64_t head) const {
    return scores + (item * a.heads + head) * rows;
  }
};
static_assert(sizeof(AttentionOnDevice) + sizeof(Partials) <= kParameterBytesMax);

// The addresses of a KV head's runs of keys in a split, block by block. They are in shared memory,
// so that a block table is read once and a row's address takes no branch.
using SplitRuns = const std::byte * [kSplitRows / kKvBlockRows];

// The key of a row of a split; its value is value_offset() further.
__device__ inline const std::byte* key_in(const AttentionOnDevice& a, const SplitRuns& runs,
                                          int row) {
  constexpr int kBlock = static_cast<int>(kKvBlockRows);
  return runs[row / kBlock] + row % kBlock * static_cast<int>(a.row_bytes);
}

// Turns a head's scores of a split into exp(score - maximum), by all lanes of a warp; the maximum
// and the sum go to the first numbers of `out`.
__device__ inline void softmax_split(float* weights, int64_t rows, float* kept_scores, float* out) {
  const int64_t lane = threadIdx.x % kWarp;
  float most = -INFINITY;
  for (int64_t row = lane; row < rows; row += kWarp) most = fmaxf(most, weights[row]);
  most = warp_max(most);
  float sum = 0;
  for (int64_t row = lane; row < rows; row += kWarp) {
    if (kept_scores != nullptr) kept_scores[row] = weights[row];
    weights[row] = expf(weights[row] - most);
    sum += weights[row];
  }
  sum = warp_sum(sum);
  if (lane > 0) return;
  out[0] = most;
  out[1] = sum;
}

}  // namespace spillway::cuda
