// Inputs of linear layers, row by row, times Hadamard matrices of blocks of 256.
#include "kernels/input_hadamard.h"

#include <algorithm>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/input_hadamard.h"
#include "kernels/cuda/kernel.h"

namespace spillway::cuda {

namespace {

constexpr unsigned kWarps = 4;       // Blocks of 256 inputs that a block of threads has
constexpr int64_t kRowsMax = 65535;  // Of a grid's y
constexpr int kEach = 8;             // Numbers of a lane: every 32nd
static_assert(kEach * kWarp == kHadamardMax);

// Sums and differences of numbers `step` apart, of which a lane has every 32nd, as on every other
// device: neighbours first. All lanes of a warp call it; numbers from `size` on are not there.
__device__ inline void add_neighbours(float (&own)[kEach], int64_t size, int lane) {
  for (int step = 1; step < kWarp && step < size; step *= 2) {
    SPILLWAY_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const float other = __shfl_xor_sync(0xffffffffu, own[i], step);
      own[i] = (lane & step) == 0 ? own[i] + other : other - own[i];
    }
  }
  SPILLWAY_UNROLL
  for (int step = 1; step < kEach; step *= 2) {
    if (step * kWarp >= size) return;
    SPILLWAY_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if ((i & step) != 0) continue;
      const float a = own[i], b = own[i + step];
      own[i] = a + b;
      own[i + step] = a - b;
    }
  }
}

// A warp for each 256 inputs of a row, or for what is left at its end, one block after another.
template <class T>
__global__ void hadamard_kernel(const T* in, int64_t in_stride, int64_t columns, T* out,
                                int64_t out_stride) {
  const int lane = threadIdx.x % kWarp;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  int64_t first = warp * kHadamardMax;
  const int64_t end = std::min<int64_t>(first + kHadamardMax, columns);
  while (first < end) {
    const int64_t size = hadamard_block(first, columns);
    const float factor = input_factor(size);
    const T* from = in + blockIdx.y * in_stride + first;
    T* to = out + blockIdx.y * out_stride + first;
    float own[kEach];
    SPILLWAY_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int64_t at = i * kWarp + lane;
      own[i] = at < size ? widen(from[at]) * factor : 0.0f;
    }
    add_neighbours(own, size, lane);
    SPILLWAY_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int64_t at = i * kWarp + lane;
      if (at < size) to[at] = narrow<T>(own[i]);
    }
    first += size;
  }
}

template <class T>
void run(CudaContext& context, const ConstMatrixView& in, const MatrixView& out) {
  const int64_t chunks = (in.columns + kHadamardMax - 1) / kHadamardMax;
  for (int64_t first = 0; first < in.rows; first += kRowsMax) {
    const Grid grid{dim3(static_cast<unsigned>((chunks + kWarps - 1) / kWarps),
                         static_cast<unsigned>(std::min(kRowsMax, in.rows - first))),
                    dim3(kWarps * kWarp)};
    launch(context.stream(), grid, hadamard_kernel<T>, reinterpret_cast<const T*>(in.row(first)),
           in.stride, in.columns, reinterpret_cast<T*>(out.row(first)), out.stride);
  }
}

}  // namespace

ConstMatrixView inputs_by_hadamard(CudaContext& context, const ConstMatrixView& in) {
  // Rows of 16 bytes, as the products that follow like them.
  const int64_t stride = (in.columns + 7) / 8 * 8;
  MatrixView out{nullptr, in.dtype, in.rows, in.columns, stride};
  out.data = context.input_scratch(static_cast<size_t>(in.rows * stride) * dtype_bytes(in.dtype));
  if (out.data == nullptr) return out;
  if (in.dtype == DType::kF32) run<float>(context, in, out);
  if (in.dtype == DType::kF16) run<__half>(context, in, out);
  if (in.dtype == DType::kBF16) run<__nv_bfloat16>(context, in, out);
  return out;
}

}  // namespace spillway::cuda
