// One decode step: a block a sequence and KV head. Stores the new row, attends to every slot in
// use, adds the weights to the scores and lets go of one row (base/kv_budget.h). Plain float32
// arithmetic; the cache is read twice, once for the scores and once for the sum.
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

// What keep_step() of the CPU does.
__device__ void keep_step(const AttentionOnDevice& a, const ItemOnDevice& item, int64_t kv_head,
                          const HeadStateOnDevice& state, int64_t* scratch) {
  if (item.kept == 0) return;
  const int64_t leaving = item.position - item.recent;
  int64_t place = -1;
  if (leaving >= 0 && leaving < item.kept) place = leaving;
  if (leaving >= item.kept && item.scored) {
    place = lowest(item, state, scratch);
    if (state.scores[leaving % item.ring()] < state.scores[item.ring() + place]) place = -1;
    __syncthreads();  // All have read the scores.
  }
  const int64_t from = leaving % item.ring(), to = item.ring() + place;
  if (threadIdx.x == 0) {
    *state.moved = place < 0 ? -1 : static_cast<int32_t>(to);
    if (place >= 0) state.positions[place] = static_cast<int32_t>(leaving);
    if (place >= 0 && item.scored) state.scores[to] = state.scores[from];
  }
  if (place < 0) return;
  copy_row(a.key_slot(item, kv_head, from), a.key_slot(item, kv_head, to), a.row_bytes);
  copy_row(a.value_slot(item, kv_head, from), a.value_slot(item, kv_head, to), a.row_bytes);
}

// weights[row] = exp(score - maximum); returns their sum to every thread.
__device__ float softmax_rows(float* weights, int64_t rows, float* scratch) {
  float most = -INFINITY;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    most = fmaxf(most, weights[row]);
  }
  most = warp_max(most);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = most;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) most = fmaxf(most, scratch[warp]);
  __syncthreads();
  float sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    weights[row] = expf(weights[row] - most);
    sum += weights[row];
  }
  return block_sum(sum, scratch);
}

// Shared memory: weights [rows].
__global__ void decode_kernel(AttentionOnDevice a) {
  __shared__ float scratch[kWarp];
  __shared__ int64_t places[kThreads];
  auto* weights = dynamic_shared<float>();
  const ItemOnDevice item = a.items[blockIdx.x];
  const int64_t kv_head = blockIdx.y;
  const HeadStateOnDevice state = head_state(item, kv_head);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  store_cached(a, a.key(item.first_row, kv_head), a.key_slot(item, kv_head, item.slot));
  store_cached(a, a.value(item.first_row, kv_head), a.value_slot(item, kv_head, item.slot));
  if (item.scored && threadIdx.x == 0) state.scores[item.slot] = 0;
  __syncthreads();
  for (int64_t head = kv_head * a.group(); head < (kv_head + 1) * a.group(); ++head) {
    const float* q = a.query(item.first_row, head);
    for (int64_t row = warp; row < item.rows; row += blockDim.x / kWarp) {
      const std::byte* k = a.key_slot(item, kv_head, row);
      float dot = 0;
      for (int64_t i = lane; i < a.head_size; i += kWarp) dot += q[i] * a.scale * cached(a, k, i);
      dot = warp_sum(dot);
      if (lane == 0) weights[row] = dot;
    }
    __syncthreads();
    const float sum = softmax_rows(weights, item.rows, scratch);
    if (item.scored) {
      for (int64_t row = threadIdx.x; row < item.rows; row += blockDim.x) {
        state.scores[row] += weights[row] / sum;
      }
    }
    for (int64_t i = threadIdx.x; i < a.head_size; i += blockDim.x) {
      float out = 0;
      for (int64_t row = 0; row < item.rows; ++row) {
        out += weights[row] * cached(a, a.value_slot(item, kv_head, row), i);
      }
      a.store_out(item.first_row, head, i, out / sum);
    }
    __syncthreads();  // The weights are free for the next head.
  }
  keep_step(a, item, kv_head, state, places);
}

}  // namespace

void launch_decode(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                   int64_t rows_max) {
  // More than this needs the rows split over blocks.
  constexpr int64_t kRowsMax = 12000;
  SPILLWAY_CHECK(rows_max <= kRowsMax && items < 65536);
  launch(context.stream(),
         {dim3(static_cast<unsigned>(items), static_cast<unsigned>(a.kv_heads)), dim3(kThreads),
          static_cast<size_t>(rows_max) * sizeof(float)},
         decode_kernel, a);
  context.check_launch("decode attention");
}

}  // namespace spillway::cuda
