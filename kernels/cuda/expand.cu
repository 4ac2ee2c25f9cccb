// 4-bit rows in the format of activations: a block a row.
#include "kernels/cuda/expand.h"

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/q4.cuh"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 256;

template <class T>
__global__ void expand_kernel(const std::byte* from, int64_t row_bytes, int64_t columns, void* out,
                              int64_t out_stride) {
  const std::byte* row = from + blockIdx.x * row_bytes;
  T* to = static_cast<T*>(out) + blockIdx.x * out_stride;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    to[i] = narrow<T>(q4_row_value(row, i, columns));
  }
}

}  // namespace

void expand_slab(CudaContext& context, const WeightSlab& slab, const MatrixView& out) {
  const auto row_bytes = static_cast<int64_t>(q4_row_bytes(out.columns));
  const Grid grid{dim3(static_cast<unsigned>(slab.rows)), dim3(kThreads)};
  const auto run = [&](auto kernel) {
    launch(context.stream(), grid, kernel, slab.data, row_bytes, out.columns,
           static_cast<void*>(out.data), out.stride);
  };
  if (out.dtype == DType::kF32) run(expand_kernel<float>);
  if (out.dtype == DType::kF16) run(expand_kernel<__half>);
  if (out.dtype == DType::kBF16) run(expand_kernel<__nv_bfloat16>);
}

void expand_rows(CudaContext& context, const ExpandArgs& args) {
  if (!context.ready()) return;
  int64_t first = 0;
  for (const WeightSlab& slab : args.from.slabs) {
    expand_slab(context, slab, args.out.slice_rows(first, slab.rows));
    first += slab.rows;
  }
  context.check_launch("expanding 4-bit weights");
}

}  // namespace spillway::cuda
