// The gate of a gated MLP: act(gate) * up, row by row.
#include <algorithm>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel.h"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t kRowsMax = 65535;  // Of a grid's y

// One thread per number of the output; `out` may be the first half of `in`.
template <class T>
__global__ void gate_kernel(const T* in, int64_t in_stride, int64_t columns, Activation activation,
                            T* out, int64_t out_stride) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= columns) return;
  const T* row = in + blockIdx.y * in_stride;
  const float value = activate(activation, widen(row[i])) * widen(row[columns + i]);
  out[blockIdx.y * out_stride + i] = narrow<T>(value);
}

template <class T>
void run(CudaContext& context, const GateArgs& args) {
  for (int64_t first = 0; first < args.in.rows; first += kRowsMax) {
    const int64_t rows = std::min(kRowsMax, args.in.rows - first);
    const Grid grid{dim3(static_cast<unsigned>((args.out.columns + kThreads - 1) / kThreads),
                         static_cast<unsigned>(rows)),
                    dim3(kThreads)};
    launch(context.stream(), grid, gate_kernel<T>, reinterpret_cast<const T*>(args.in.row(first)),
           args.in.stride, args.out.columns, args.activation,
           reinterpret_cast<T*>(args.out.row(first)), args.out.stride);
  }
}

}  // namespace

void run(CudaContext& context, const GateArgs& args) {
  if (!context.ready()) return;
  if (args.in.dtype == DType::kF32) run<float>(context, args);
  if (args.in.dtype == DType::kF16) run<__half>(context, args);
  if (args.in.dtype == DType::kBF16) run<__nv_bfloat16>(context, args);
  context.check_launch("gate");
}

}  // namespace spillway::cuda
