// Query and key heads, row by row: RMSNorm of each head, rotary positions, a Hadamard
// matrix.
#include <algorithm>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel.h"

namespace spillway::cuda {

namespace {

constexpr unsigned kWarps = 4;       // Heads of a block
constexpr int64_t kRowsMax = 65535;  // Of a grid's y

struct RotateKernel {
  float* qkv;
  int64_t stride, heads, kv_heads, head_size;
  const float* query_norm;
  const float* key_norm;
  float epsilon;
  const float* table;
  int64_t table_stride, half;
  bool interleaved;
  int64_t hadamard;  // The matrix's size; 0: none
};

// Sums and differences of the numbers of two lanes `step` apart; the upper one has the difference.
__device__ inline float add_lane(float x, int64_t step) {
  const float other = __shfl_xor_sync(0xffffffffu, x, static_cast<int>(step));
  return (threadIdx.x & step) == 0 ? x + other : other - x;
}

// Multiplies `size` numbers by the Walsh-Hadamard matrix of that size over its root: a lane has
// every 32nd of them. All lanes of a warp call it.
template <int kEach>
__device__ void multiply_hadamard(float* x, int lane) {
  float own[kEach];
  for (int i = 0; i < kEach; ++i) own[i] = x[i * kWarp + lane];
  for (int64_t step = 1; step < kWarp; step *= 2) {
    for (int i = 0; i < kEach; ++i) own[i] = add_lane(own[i], step);
  }
  for (int step = 1; step < kEach; step *= 2) {
    for (int i = 0; i < kEach; ++i) {
      if ((i & step) != 0) continue;
      const float a = own[i], b = own[i + step];
      own[i] = a + b;
      own[i + step] = a - b;
    }
  }
  const float scale = 1.0f / sqrtf(static_cast<float>(kEach * kWarp));
  for (int i = 0; i < kEach; ++i) x[i * kWarp + lane] = own[i] * scale;
}

// The same for each `size` of `count` numbers, of matrices that have less numbers than a warp has
// lanes.
__device__ inline void multiply_small_hadamard(float* x, int64_t count, int64_t size, int lane) {
  const float scale = 1.0f / sqrtf(static_cast<float>(size));
  for (int64_t first = 0; first < count; first += kWarp) {
    const bool there = first + lane < count;
    float own = there ? x[first + lane] : 0.0f;
    for (int64_t step = 1; step < size; step *= 2) own = add_lane(own, step);
    if (there) x[first + lane] = own * scale;
  }
}

__device__ inline void multiply_head(const RotateKernel& k, float* x, int lane) {
  if (k.hadamard < kWarp) return multiply_small_hadamard(x, k.head_size, k.hadamard, lane);
  for (int64_t first = 0; first < k.head_size; first += k.hadamard) {
    if (k.hadamard == kWarp) multiply_hadamard<1>(x + first, lane);
    if (k.hadamard == 2 * kWarp) multiply_hadamard<2>(x + first, lane);
    if (k.hadamard == 4 * kWarp) multiply_hadamard<4>(x + first, lane);
    if (k.hadamard == 8 * kWarp) multiply_hadamard<8>(x + first, lane);
  }
}
static_assert(kHeadSizeMax == 8 * kWarp);

// One warp per head of a row. Each lane reads and writes the pairs that it alone has; all numbers
// of the head are normalised before.
__global__ void rotate_kernel(RotateKernel k) {
  const int lane = threadIdx.x % kWarp;
  const int64_t head = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (head >= k.heads + k.kv_heads) return;
  float* x = k.qkv + blockIdx.y * k.stride + head * k.head_size;
  const float* norm = head < k.heads ? k.query_norm : k.key_norm;
  if (norm != nullptr) {
    float square = 0;
    for (int64_t i = lane; i < k.head_size; i += kWarp) square += x[i] * x[i];
    const float mean = warp_sum(square) / static_cast<float>(k.head_size);
    const float scale = 1.0f / sqrtf(mean + k.epsilon);
    for (int64_t i = lane; i < k.head_size; i += kWarp) x[i] = x[i] * scale * norm[i];
    __syncwarp();
  }
  const float* cosines = k.table + blockIdx.y * k.table_stride;
  for (int64_t i = lane; i < k.half; i += kWarp) {
    const int64_t first = k.interleaved ? 2 * i : i;
    const int64_t second = k.interleaved ? 2 * i + 1 : i + k.half;
    const float a = x[first], b = x[second], c = cosines[i], s = cosines[k.half + i];
    x[first] = a * c - b * s;
    x[second] = b * c + a * s;
  }
  if (k.hadamard == 0) return;
  __syncwarp();
  multiply_head(k, x, lane);
}

}  // namespace

void run(CudaContext& context, const RotateArgs& args) {
  if (!context.ready()) return;
  const auto heads = static_cast<unsigned>(args.heads + args.kv_heads);
  for (int64_t first = 0; first < args.qkv.rows; first += kRowsMax) {
    const int64_t rows = std::min(kRowsMax, args.qkv.rows - first);
    const bool rotates = args.table.columns > 0;
    const RotateKernel kernel{
        .qkv = args.qkv.f32(first),
        .stride = args.qkv.stride,
        .heads = args.heads,
        .kv_heads = args.kv_heads,
        .head_size = args.head_size,
        .query_norm = args.query_norm,
        .key_norm = args.key_norm,
        .epsilon = args.epsilon,
        .table = rotates ? reinterpret_cast<const float*>(args.table.row(first)) : nullptr,
        .table_stride = args.table.stride,
        .half = args.table.columns / 2,
        .interleaved = args.interleaved,
        .hadamard = args.hadamard ? hadamard_size(args.head_size) : 0};
    const Grid grid{dim3((heads + kWarps - 1) / kWarps, static_cast<unsigned>(rows)),
                    dim3(kWarps * kWarp)};
    launch(context.stream(), grid, rotate_kernel, kernel);
  }
  context.check_launch("rotate");
}

}  // namespace spillway::cuda
