// Linear layers: cuBLAS for the products, accumulated in float32, one for each run of slabs that
// lie one behind the other; an epilogue of ours for bias, activation and the format of the output.
// 4-bit weights are expanded into the format of the activations, slab by slab; for few rows
// linear_q4.cu does without.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/linear_q4.h"
#include "kernels/cuda/q4.cuh"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 256;
constexpr float kOne = 1, kZero = 0;

// Neighbouring slabs as one matrix.
struct Run {
  const std::byte* data = nullptr;
  int64_t first = 0, rows = 0;
};

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::kF32) return CUDA_R_32F;
  return dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

// out[row][i] = act(in[row][i] + bias[i]); `out` may be `in`.
template <class T>
__global__ void epilogue_kernel(const float* in, int64_t in_stride, int64_t columns,
                                const float* bias, Activation activation, T* out,
                                int64_t out_stride) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= columns) return;
  const float x = in[blockIdx.y * in_stride + i] + (bias == nullptr ? 0.0f : bias[i]);
  out[blockIdx.y * out_stride + i] = narrow<T>(activate(activation, x));
}

// 4-bit rows in the format of activations, dense.
template <class T>
__global__ void expand_kernel(const std::byte* from, int64_t row_bytes, int64_t columns, T* to) {
  const std::byte* row = from + blockIdx.x * row_bytes;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    to[blockIdx.x * columns + i] = narrow<T>(q4_row_value(row, i, columns));
  }
}

class Linear {
 public:
  Linear(CudaContext& context, const LinearArgs& args) : context_(context), args_(args) {}

  void run() {
    const DType in = args_.in.dtype;
    const bool narrow_out = args_.out.dtype != DType::kF32;
    const bool expand = args_.weight.format == DType::kQ4;
    SPILLWAY_CHECK(args_.weight.layout == MatrixLayout::kRows);
    SPILLWAY_CHECK(expand || args_.weight.format == in);
    // Scratch: the sums of a narrow output, then one slab expanded.
    const auto sums = static_cast<size_t>(narrow_out ? args_.in.rows * args_.weight.rows : 0) * 4;
    const size_t sums_bytes = (sums + 255) / 256 * 256;
    const auto slab = static_cast<size_t>(expand ? args_.weight.slab_rows * args_.in.columns : 0) *
                      dtype_bytes(in);
    std::byte* scratch = nullptr;
    if (sums_bytes + slab > 0) {
      scratch = context_.scratch(sums_bytes + slab);
      if (scratch == nullptr) return;  // The context remembers why.
    }
    sums_ =
        narrow_out ? reinterpret_cast<float*>(scratch) : reinterpret_cast<float*>(args_.out.data);
    stride_ = narrow_out ? args_.weight.rows : args_.out.stride;
    multiply(expand, scratch + sums_bytes);
    finish();
    context_.check_launch("linear");
  }

 private:
  void multiply(bool expand, std::byte* slab) {
    Run run;
    int64_t first = 0;
    for (const WeightSlab& next : args_.weight.slabs) {
      if (expand) {
        expand_slab(next, slab);
        product({slab, first, next.rows});
      } else if (run.rows > 0 && run.data + bytes_of(run.rows) == next.data) {
        run.rows += next.rows;
      } else {
        product(run);
        run = {next.data, first, next.rows};
      }
      first += next.rows;
    }
    product(run);
  }

  size_t bytes_of(int64_t rows) const {
    return static_cast<size_t>(rows * args_.weight.columns) * dtype_bytes(args_.weight.format);
  }

  void expand_slab(const WeightSlab& slab, std::byte* to) {
    const int64_t columns = args_.weight.columns;
    const auto row_bytes = static_cast<int64_t>(q4_row_bytes(columns));
    const Grid grid{dim3(static_cast<unsigned>(slab.rows)), dim3(kThreads)};
    const auto run = [&](auto kernel, auto* target) {
      launch(context_.stream(), grid, kernel, slab.data, row_bytes, columns, target);
    };
    if (args_.in.dtype == DType::kF32) run(expand_kernel<float>, reinterpret_cast<float*>(to));
    if (args_.in.dtype == DType::kF16) run(expand_kernel<__half>, reinterpret_cast<__half*>(to));
    if (args_.in.dtype == DType::kBF16) {
      run(expand_kernel<__nv_bfloat16>, reinterpret_cast<__nv_bfloat16*>(to));
    }
  }

  // sums[:, first .. first + rows) (+)= in weight^T. cuBLAS counts columns first: to it the weights
  // are [columns, rows], to be transposed, and the sums are [rows, tokens].
  void product(const Run& run) {
    if (run.rows == 0) return;
    const cudaDataType_t type = type_of(args_.in.dtype);
    const auto number = [](int64_t count) { return static_cast<int>(count); };
    const cublasStatus_t status = cublasGemmEx(
        context_.blas(), CUBLAS_OP_T, CUBLAS_OP_N, number(run.rows), number(args_.in.rows),
        number(args_.in.columns), &kOne, run.data, type, number(args_.in.columns), args_.in.data,
        type, number(args_.in.stride), args_.accumulate ? &kOne : &kZero, sums_ + run.first,
        CUDA_R_32F, number(stride_), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    context_.check_blas(status, "a matrix product");
  }

  void finish() {
    const bool plain = args_.bias == nullptr && args_.activation == Activation::kNone;
    if (plain && args_.out.dtype == DType::kF32) return;
    const int64_t columns = args_.weight.rows;
    const Grid grid{dim3(static_cast<unsigned>((columns + kThreads - 1) / kThreads),
                         static_cast<unsigned>(args_.in.rows)),
                    dim3(kThreads)};
    const auto run = [&](auto kernel, auto* out) {
      launch(context_.stream(), grid, kernel, static_cast<const float*>(sums_), stride_, columns,
             args_.bias, args_.activation, out, args_.out.stride);
    };
    std::byte* out = args_.out.data;
    if (args_.out.dtype == DType::kF32) run(epilogue_kernel<float>, reinterpret_cast<float*>(out));
    if (args_.out.dtype == DType::kF16)
      run(epilogue_kernel<__half>, reinterpret_cast<__half*>(out));
    if (args_.out.dtype == DType::kBF16) {
      run(epilogue_kernel<__nv_bfloat16>, reinterpret_cast<__nv_bfloat16*>(out));
    }
  }

  CudaContext& context_;
  const LinearArgs& args_;
  float* sums_ = nullptr;
  int64_t stride_ = 0;
};

}  // namespace

void linear(CudaContext& context, const LinearArgs& args) {
  if (!context.status().ok()) return;
  if (takes_linear_q4(args)) return linear_q4(context, args);
  // More rows than a grid has in y go in parts.
  constexpr int64_t kRowsMax = 65535;
  for (int64_t first = 0; first < args.in.rows; first += kRowsMax) {
    LinearArgs part = args;
    part.in.data = args.in.row(first);
    part.in.rows = std::min(kRowsMax, args.in.rows - first);
    part.out = args.out.slice_rows(first, part.in.rows);
    Linear(context, part).run();
  }
}

}  // namespace spillway::cuda
