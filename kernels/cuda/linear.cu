// Linear layers: one matrix product, accumulated in float32, for each run of contiguous slabs.
// cuBLASLt adds the bias, applies the activation and narrows the output in the product's own
// epilogue; where it cannot (no such activation, no algorithm for the shape), cuBLAS writes float32
// sums and a kernel of ours finishes them. 4-bit weights are expanded into the format of the
// activations, slab by slab; few rows need no expansion (linear_quant.cu).
#include <algorithm>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/blas_plans.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/expand.h"
#include "kernels/cuda/input_hadamard.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/linear_quant.h"

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

// out[row][i] = act(in[row][i] + bias[i]), the bias in the format of the output, as cuBLASLt has
// it; `out` may be `in`.
template <class T>
__global__ void epilogue_kernel(const float* in, int64_t in_stride, int64_t columns,
                                const float* bias, Activation activation, T* out,
                                int64_t out_stride) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= columns) return;
  const float b = bias == nullptr ? 0.0f : widen(narrow<T>(bias[i]));
  const float x = in[blockIdx.y * in_stride + i] + b;
  out[blockIdx.y * out_stride + i] = narrow<T>(activate(activation, x));
}

// The bias in the format of the output, as cuBLASLt wants it.
template <class T>
__global__ void narrow_kernel(const float* in, int64_t count, T* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = narrow<T>(in[i]);
}

// cuBLASLt's epilogue for an activation; empty for an activation that it does not have. Its GELU's
// accuracy is not documented: good enough for a narrow output. Its ReLU may make NaN 0: it is taken
// where the model's weights are known to be finite. NaN in its input alone comes out of the
// residual stream, which keeps it.
std::optional<cublasLtEpilogue_t> epilogue_of(Activation activation, bool bias, bool narrow_out,
                                              bool finite_weights) {
  switch (activation) {
    case Activation::kNone:
      return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Activation::kRelu:
      if (!finite_weights) return std::nullopt;
      return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Activation::kGeluTanh:
      if (!narrow_out) return std::nullopt;
      return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case Activation::kGelu:
    case Activation::kSilu:
      return std::nullopt;
  }
  return std::nullopt;
}

constexpr size_t kAlignment = 256;  // The most that any algorithm asks for

class Linear {
 public:
  Linear(CudaContext& context, const LinearArgs& args)
      : context_(context), args_(args), expand_(is_quantized(args.weight.format)) {}

  void run() {
    const DType in = args_.in.dtype;
    const bool narrow_out = args_.out.dtype != DType::kF32;
    SPILLWAY_CHECK(args_.weight.layout == MatrixLayout::kRows);
    SPILLWAY_CHECK(expand_ || args_.weight.format == plain_format(in));
    const bool fused = can_fuse();
    // Scratch: the rounded bias or the float32 sums, then one expanded slab, then cuBLASLt's
    // workspace.
    const size_t outputs = static_cast<size_t>(args_.weight.rows);
    size_t finishing = 0;
    if (fused && args_.bias != nullptr && given_bias() == nullptr)
      finishing = outputs * dtype_bytes(args_.out.dtype);
    if (narrow_out && !fused) finishing = static_cast<size_t>(args_.in.rows) * outputs * 4;
    const auto slab = static_cast<size_t>(expand_ ? args_.weight.slab_rows * args_.in.columns : 0) *
                      dtype_bytes(in);
    const size_t bytes =
        round_up(finishing, kAlignment) + round_up(slab, kAlignment) + workspace_bytes_;
    std::byte* scratch = nullptr;
    if (bytes > 0) {
      scratch = context_.scratch(bytes);
      if (scratch == nullptr) return;  // The context has the reason.
    }
    slab_ = scratch + round_up(finishing, kAlignment);
    workspace_ = slab_ + round_up(slab, kAlignment);
    if (fused) {
      bias_ = bias_in_format(scratch);
      for_each_run([&](const Run& run) { fused_product(run); });
    } else {
      sums_ =
          narrow_out ? reinterpret_cast<float*>(scratch) : reinterpret_cast<float*>(args_.out.data);
      stride_ = narrow_out ? args_.weight.rows : args_.out.stride;
      for_each_run([&](const Run& run) { product(run); });
      finish();
    }
    context_.check_launch("linear");
  }

 private:
  // Contiguous slabs are one matrix; expanded slabs use the same memory one after another.
  template <class Visit>
  void for_each_run(Visit visit) {
    Run run;
    int64_t first = 0;
    for (const WeightSlab& next : args_.weight.slabs) {
      if (!expand_ && run.rows > 0 && run.data + bytes_of(run.rows) == next.data) {
        run.rows += next.rows;
      } else {
        if (run.rows > 0) visit(run);
        run = {next.data, first, next.rows};
      }
      first += next.rows;
    }
    if (run.rows > 0) visit(run);
  }

  // Whether cuBLASLt has an algorithm for each run. Notes the largest workspace.
  bool can_fuse() {
    const DType out = args_.out.dtype;
    const auto epilogue = epilogue_of(args_.activation, args_.bias != nullptr, out != DType::kF32,
                                      args_.weight.finite);
    if (!epilogue || (out != DType::kF32 && out != args_.in.dtype)) return false;
    epilogue_ = *epilogue;
    bool all = true;
    for_each_run([&](const Run& run) {
      const BlasPlan* plan = all ? context_.plans().find(shape_of(run)) : nullptr;
      all = plan != nullptr;
      if (all) workspace_bytes_ = std::max(workspace_bytes_, plan->workspace);
    });
    if (!all) workspace_bytes_ = 0;
    return all;
  }

  BlasShape shape_of(const Run& run) const {
    const size_t out_bytes = dtype_bytes(args_.out.dtype);
    const auto offset = static_cast<size_t>(run.first) * out_bytes;
    // A bias that is rounded here lies in scratch, which is as aligned as null.
    const std::byte* bias = given_bias();
    return {.in_type = type_of(args_.in.dtype),
            .out_type = type_of(args_.out.dtype),
            .epilogue = epilogue_,
            .rows = run.rows,
            .columns = args_.in.columns,
            .tokens = args_.in.rows,
            .in_stride = args_.in.stride,
            .out_stride = args_.out.stride,
            .weight_alignment = expand_ ? 256 : alignment_of(run.data),
            .in_alignment = alignment_of(args_.in.data),
            .out_alignment = alignment_of(args_.out.data + offset),
            .bias_alignment = alignment_of(bias + offset)};
  }

  // The bias in the format of the output; null: there is none, or it has to be rounded.
  const std::byte* given_bias() const {
    if (args_.out.dtype != DType::kF32) return args_.rounded_bias;
    return reinterpret_cast<const std::byte*>(args_.bias);
  }

  // The bias in the format of the output, rounded into `to` where it has to be.
  const std::byte* bias_in_format(std::byte* to) {
    if (args_.bias == nullptr || given_bias() != nullptr) return given_bias();
    const int64_t count = args_.weight.rows;
    const Grid grid{dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads)};
    if (args_.out.dtype == DType::kF16) {
      launch(context_.stream(), grid, narrow_kernel<__half>, args_.bias, count,
             reinterpret_cast<__half*>(to));
    } else {
      launch(context_.stream(), grid, narrow_kernel<__nv_bfloat16>, args_.bias, count,
             reinterpret_cast<__nv_bfloat16*>(to));
    }
    return to;
  }

  // out[:, first .. first + rows) = epilogue((out +) in weight^T).
  void fused_product(const Run& run) {
    BlasPlan* plan = context_.plans().find(shape_of(run));
    if (plan == nullptr)
      return context_.check_blas(CUBLAS_STATUS_NOT_SUPPORTED, "a matrix product");
    const auto offset = static_cast<size_t>(run.first) * dtype_bytes(args_.out.dtype);
    const cublasStatus_t status =
        context_.plans().run(*plan,
                             {.weight = weight_of(run),
                              .in = args_.in.data,
                              .out = args_.out.data + offset,
                              .bias = bias_ == nullptr ? nullptr : bias_ + offset,
                              .scale = args_.scale,
                              .accumulate = args_.accumulate,
                              .workspace = workspace_},
                             context_.stream());
    context_.check_blas(status, "a matrix product");
  }

  const std::byte* weight_of(const Run& run) {
    if (!expand_) return run.data;
    expand_slab(context_, args_.weight.format, {run.data, run.rows},
                dense_matrix(slab_, args_.in.dtype, run.rows, args_.in.columns));
    return slab_;
  }

  size_t bytes_of(int64_t rows) const {
    return static_cast<size_t>(rows) * format_row_bytes(args_.weight.format, args_.weight.columns);
  }

  // sums[:, first .. first + rows) (+)= in weight^T. cuBLAS is column-major: to it the weights are
  // [columns, rows], to be transposed, and the sums are [rows, tokens].
  void product(const Run& run) {
    const cudaDataType_t type = type_of(args_.in.dtype);
    const auto number = [](int64_t count) { return static_cast<int>(count); };
    const cublasStatus_t status = cublasGemmEx(
        context_.blas(), CUBLAS_OP_T, CUBLAS_OP_N, number(run.rows), number(args_.in.rows),
        number(args_.in.columns), &args_.scale, weight_of(run), type, number(args_.in.columns),
        args_.in.data, type, number(args_.in.stride), args_.accumulate ? &kOne : &kZero,
        sums_ + run.first, CUDA_R_32F, number(stride_), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
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
  bool expand_;
  std::byte* slab_ = nullptr;  // One expanded slab
  // Used with cuBLASLt.
  cublasLtEpilogue_t epilogue_ = CUBLASLT_EPILOGUE_DEFAULT;
  const std::byte* bias_ = nullptr;  // In the format of the output
  std::byte* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  // Used without cuBLASLt.
  float* sums_ = nullptr;
  int64_t stride_ = 0;
};

}  // namespace

void run(CudaContext& context, const LinearArgs& asked) {
  if (!context.ready()) return;
  LinearArgs args = asked;
  if (args.weight.hadamard) args.in = inputs_by_hadamard(context, asked.in);
  if (args.in.data == nullptr) return;  // The context has the reason.
  if (takes_linear_quant(args)) return linear_quant(context, args);
  // Batches of more rows than a grid has in y run in parts.
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
