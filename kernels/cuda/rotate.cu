// Query and key heads, row by row: RMSNorm of each head, then rotary positions.
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
};

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
        .interleaved = args.interleaved};
    const Grid grid{dim3((heads + kWarps - 1) / kWarps, static_cast<unsigned>(rows)),
                    dim3(kWarps * kWarp)};
    launch(context.stream(), grid, rotate_kernel, kernel);
  }
  context.check_launch("rotate");
}

}  // namespace spillway::cuda
