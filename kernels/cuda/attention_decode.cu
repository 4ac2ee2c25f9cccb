// One decode step. Stores the new row, attends to every slot in use, adds the weights to the scores
// and drops one row (base/kv_budget.h). Plain float32 arithmetic; keys and values are read once.
// The rows of a sequence are split over blocks, so that few long sequences use the whole device
// ("Flash-Decoding", Dao et al. 2023); a second kernel puts the parts together.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/cuda_context.h"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 128;

__device__ void copy_row(const std::byte* from, std::byte* to, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

// The kept row with the lowest score, of equal ones the earliest; every thread gets it.
__device__ int64_t lowest(const ItemOnDevice& item, const HeadStateOnDevice& state,
                          int64_t* scratch) {
  const float* scores = state.scores + item.ring();
  const auto before = [&](int64_t a, int64_t b) {
    return scores[a] != scores[b] ? scores[a] < scores[b] : state.positions[a] < state.positions[b];
  };
  int64_t best = -1;
  for (int64_t i = threadIdx.x; i < item.kept; i += blockDim.x) {
    if (best < 0 || before(i, best)) best = i;
  }
  scratch[threadIdx.x] = best;
  __syncthreads();
  for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      const int64_t other = scratch[threadIdx.x + step];
      if (other >= 0 && (scratch[threadIdx.x] < 0 || before(other, scratch[threadIdx.x]))) {
        scratch[threadIdx.x] = other;
      }
    }
    __syncthreads();
  }
  return scratch[0];
}

// keep_step() of the CPU, on the device.
__device__ void keep_step(const AttentionOnDevice& a, const ItemOnDevice& item, int64_t kv_head,
                          const HeadStateOnDevice& state, int64_t* scratch) {
  if (item.kept == 0) return;
  const int64_t candidate = item.position - item.recent;  // It leaves the recent window.
  int64_t place = -1;
  if (candidate >= 0 && candidate < item.kept) place = candidate;
  if (candidate >= item.kept && item.scored) {
    place = lowest(item, state, scratch);
    if (state.scores[candidate % item.ring()] < state.scores[item.ring() + place]) place = -1;
    __syncthreads();  // All have read the scores.
  }
  const int64_t from = candidate % item.ring(), to = item.ring() + place;
  if (threadIdx.x == 0) {
    *state.moved = place < 0 ? -1 : static_cast<int32_t>(to);
    if (place >= 0) state.positions[place] = static_cast<int32_t>(candidate);
    if (place >= 0 && item.scored) state.scores[to] = state.scores[from];
  }
  if (place < 0) return;
  copy_row(a.key_slot(item, kv_head, from), a.key_slot(item, kv_head, to), a.row_bytes);
  copy_row(a.value_slot(item, kv_head, from), a.value_slot(item, kv_head, to), a.row_bytes);
}

// Numbers [i, i + 4) of a cached row. REQUIRES: head_size and i are multiples of 4.
__device__ void cached4(const AttentionOnDevice& a, const std::byte* row, int64_t i, float to[4]) {
  if (a.kv_format == Format::kF32) {
    const float4 four = *reinterpret_cast<const float4*>(row + i * 4);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  } else if (a.kv_format == Format::kF16) {
    for (int j = 0; j < 4; ++j) to[j] = widen(reinterpret_cast<const __half*>(row + i * 2)[j]);
  } else if (a.kv_format == Format::kBF16) {
    for (int j = 0; j < 4; ++j) {
      to[j] = widen(reinterpret_cast<const __nv_bfloat16*>(row + i * 2)[j]);
    }
  } else {
    for (int j = 0; j < 4; ++j) to[j] = q4_row_value(row, i + j, a.head_size);
  }
}

// q . k of a cached row, by all lanes of a warp; each gets it.
__device__ float dot_cached(const AttentionOnDevice& a, const float* q, const std::byte* k) {
  const int64_t lane = threadIdx.x % kWarp;
  float dot = 0;
  if (a.head_size % 4 == 0) {
    for (int64_t i = lane * 4; i < a.head_size; i += kWarp * 4) {
      float four[4];
      cached4(a, k, i, four);
      for (int j = 0; j < 4; ++j) dot += q[i + j] * four[j];
    }
  } else {
    for (int64_t i = lane; i < a.head_size; i += kWarp) dot += q[i] * cached(a, k, i);
  }
  return warp_sum(dot) * a.scale;
}

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

// The largest of weights [0, rows), to every thread. `scratch`: one float per warp, free
// afterwards.
__device__ float largest(const float* weights, int64_t rows, float* scratch) {
  float most = -INFINITY;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) most = fmaxf(most, weights[row]);
  most = warp_max(most);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = most;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) most = fmaxf(most, scratch[warp]);
  __syncthreads();
  return most;
}

// One block per sequence, KV head and split of its rows. Stores the new row where it is in the
// split.
__global__ void split_kernel(const __grid_constant__ AttentionOnDevice a, Partials partials) {
  __shared__ float scratch[kWarp];
  __shared__ float weights[kSplitRows];
  const ItemOnDevice item = a.item(blockIdx.x);
  const int64_t kv_head = blockIdx.y, first = blockIdx.z * kSplitRows;
  if (first >= item.rows) return;  // The whole block
  const int64_t rows = item.rows - first < kSplitRows ? item.rows - first : kSplitRows;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (item.slot >= first && item.slot < first + rows) {
    if (warp == 0) {
      store_cached(a, a.key(item.first_row, kv_head), a.key_slot(item, kv_head, item.slot));
    }
    if (warp == 1) {
      store_cached(a, a.value(item.first_row, kv_head), a.value_slot(item, kv_head, item.slot));
    }
  }
  __syncthreads();
  for (int64_t head = kv_head * a.group(); head < (kv_head + 1) * a.group(); ++head) {
    const float* q = a.query(item.first_row, head);
    for (int64_t row = warp; row < rows; row += blockDim.x / kWarp) {
      const float dot = dot_cached(a, q, a.key_slot(item, kv_head, first + row));
      if (lane == 0) weights[row] = dot;
    }
    __syncthreads();
    const float most = largest(weights, rows, scratch);
    float sum = 0;
    for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
      if (item.scored) partials.row_scores(a, blockIdx.x, head)[first + row] = weights[row];
      weights[row] = expf(weights[row] - most);
      sum += weights[row];
    }
    sum = block_sum(sum, scratch);
    float* out = partials.split(a, blockIdx.x, head, blockIdx.z);
    if (threadIdx.x == 0) {
      out[0] = most;
      out[1] = sum;
    }
    for (int64_t i = threadIdx.x; i < a.head_size; i += blockDim.x) {
      float value = 0;
      for (int64_t row = 0; row < rows; ++row) {
        value += weights[row] * cached(a, a.value_slot(item, kv_head, first + row), i);
      }
      out[2 + i] = value;
    }
    __syncthreads();  // The weights are free for the next head.
  }
}

// One block per sequence and KV head: adds up the splits, adds to the rows' scores, and drops one
// row.
__global__ void combine_kernel(const __grid_constant__ AttentionOnDevice a, Partials partials) {
  __shared__ int64_t places[kThreads];
  const ItemOnDevice item = a.item(blockIdx.x);
  const int64_t kv_head = blockIdx.y, splits = (item.rows + kSplitRows - 1) / kSplitRows;
  const HeadStateOnDevice state = head_state(item, kv_head);
  if (item.scored && threadIdx.x == 0) state.scores[item.slot] = 0;
  __syncthreads();
  for (int64_t head = kv_head * a.group(); head < (kv_head + 1) * a.group(); ++head) {
    float most = -INFINITY, sum = 0;
    for (int64_t split = 0; split < splits; ++split) {
      most = fmaxf(most, partials.split(a, blockIdx.x, head, split)[0]);
    }
    for (int64_t split = 0; split < splits; ++split) {
      const float* part = partials.split(a, blockIdx.x, head, split);
      sum += part[1] * expf(part[0] - most);
    }
    for (int64_t i = threadIdx.x; i < a.head_size; i += blockDim.x) {
      float out = 0;
      for (int64_t split = 0; split < splits; ++split) {
        const float* part = partials.split(a, blockIdx.x, head, split);
        out += part[2 + i] * expf(part[0] - most);
      }
      a.store_out(item.first_row, head, i, out / sum);
    }
    if (!item.scored) continue;
    // A thread's rows are its own in every head.
    const float* scores = partials.row_scores(a, blockIdx.x, head);
    for (int64_t row = threadIdx.x; row < item.rows; row += blockDim.x) {
      state.scores[row] += expf(scores[row] - most) / sum;
    }
  }
  __syncthreads();
  keep_step(a, item, kv_head, state, places);
}

}  // namespace

void launch_decode(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                   int64_t rows_max, bool scored, int64_t scratch_bytes) {
  constexpr int64_t kItemsMax = 65535;
  Partials partials{};
  partials.split_count = (rows_max + kSplitRows - 1) / kSplitRows;
  partials.rows = rows_max;
  SPILLWAY_CHECK(partials.split_count < 65536);
  const int64_t splits = a.heads * partials.split_count * (2 + a.head_size);
  const int64_t scores = scored ? a.heads * rows_max : 0;
  const int64_t item_bytes = (splits + scores) * static_cast<int64_t>(sizeof(float));
  const int64_t most = std::clamp<int64_t>(scratch_bytes / item_bytes, 1, kItemsMax);
  const int64_t each = std::min(most, items);
  auto* scratch = reinterpret_cast<float*>(context.scratch(static_cast<size_t>(each * item_bytes)));
  if (scratch == nullptr) return;  // The context has the reason.
  partials.splits = scratch;
  if (scored) partials.scores = scratch + each * splits;
  for (int64_t first = 0; first < items; first += each) {
    AttentionOnDevice part = a;
    part.skip_items(first);
    const auto count = static_cast<unsigned>(std::min(each, items - first));
    const auto heads = static_cast<unsigned>(a.kv_heads);
    launch(context.stream(),
           {dim3(count, heads, static_cast<unsigned>(partials.split_count)), dim3(kThreads)},
           split_kernel, part, partials);
    launch(context.stream(), {dim3(count, heads), dim3(kThreads)}, combine_kernel, part, partials);
  }
  context.check_launch("decode attention");
}

}  // namespace spillway::cuda
