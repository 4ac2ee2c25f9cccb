// The index of each row's highest number: greedy sampling where the logits are, so that four bytes
// of each row cross the link instead of all of them. Comparisons alone, so the result is the
// host's.
#include "kernels/base/check.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel.h"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 512;

struct Best {
  float value;
  int32_t index;  // -1: none yet, and the value is -inf

  __device__ void take(float other, int32_t at) {
    const bool higher = other > value || (other == value && at >= 0 && (index < 0 || at < index));
    if (!higher) return;
    value = other;
    index = at;
  }
};

// Of all lanes, to every lane.
__device__ Best warp_best(Best best) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float value = __shfl_xor_sync(0xffffffffu, best.value, step);
    const int32_t index = __shfl_xor_sync(0xffffffffu, best.index, step);
    best.take(value, index);
  }
  return best;
}

// A block a row.
__global__ void best_kernel(const float* in, int64_t stride, const int32_t* counts, int32_t* out) {
  __shared__ float values[kWarp];
  __shared__ int32_t indices[kWarp];
  __shared__ int32_t bad[kWarp];
  const float* row = in + blockIdx.x * stride;
  const int32_t count = counts[blockIdx.x];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Best best{-INFINITY, -1};
  bool invalid = false;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count;
       i += static_cast<int32_t>(blockDim.x)) {
    invalid = invalid || !(row[i] < INFINITY);
    if (row[i] > best.value) best = {row[i], i};
  }
  best = warp_best(best);
  const bool warp_invalid = __any_sync(0xffffffffu, invalid);
  if (lane == 0) {
    values[warp] = best.value;
    indices[warp] = best.index;
    bad[warp] = warp_invalid ? 1 : 0;
  }
  __syncthreads();
  if (warp > 0) return;
  const bool there = lane < blockDim.x / kWarp;
  best = warp_best(there ? Best{values[lane], indices[lane]} : Best{-INFINITY, -1});
  const bool any = __any_sync(0xffffffffu, there && bad[lane] != 0);
  if (lane == 0) out[blockIdx.x] = any ? -1 : best.index;
}

}  // namespace

void best_columns(CudaContext& context, const BestArgs& args) {
  if (args.in.rows == 0 || !context.status().ok()) return;
  SPILLWAY_CHECK(args.in.rows < (int64_t{1} << 31));
  const int32_t* counts = context.upload(args.counts);
  if (!context.status().ok()) return;
  launch(context.stream(), {dim3(static_cast<unsigned>(args.in.rows)), dim3(kThreads)}, best_kernel,
         reinterpret_cast<const float*>(args.in.data), args.in.stride, counts, args.out);
  context.check_launch("the highest of each row");
}

}  // namespace spillway::cuda
