// The ops that work row by row: table look-up, LayerNorm and RMSNorm, conversion.
#include <algorithm>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/quantized.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/quant.cuh"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 256;

struct GatherKernel {
  const std::byte* const* slabs;
  const int32_t* rows;
  int64_t slab_rows, row_bytes, columns;
  Format format;
  float* out;
  int64_t out_stride;
  float scale;
  bool accumulate;
};

__device__ float table_value(Format format, const std::byte* row, int64_t i, int64_t columns) {
  if (format == Format::kF32) return reinterpret_cast<const float*>(row)[i];
  if (format == Format::kF16) return widen(reinterpret_cast<const __half*>(row)[i]);
  if (format == Format::kBF16) return widen(reinterpret_cast<const __nv_bfloat16*>(row)[i]);
  if (format == Format::kQ8) return q8_row_value(row, i);
  if (format == Format::kQ8_1) return quantized_row_value<8, 32>(row, i, columns);
  if (format == Format::kQ4_1) return quantized_row_value<4, 32>(row, i, columns);
  return q4_row_value(row, i, columns);
}

// One block per row.
__global__ void gather_kernel(GatherKernel k) {
  const int64_t row = k.rows[blockIdx.x];
  const std::byte* from = k.slabs[row / k.slab_rows] + row % k.slab_rows * k.row_bytes;
  float* out = k.out + blockIdx.x * k.out_stride;
  for (int64_t i = threadIdx.x; i < k.columns; i += blockDim.x) {
    const float value = k.scale * table_value(k.format, from, i, k.columns);
    out[i] = k.accumulate ? out[i] + value : value;
  }
}

struct NormKernel {
  const float* in;
  int64_t in_stride, columns;
  const float* weight;
  const float* bias;
  float epsilon;
  bool centred;
  void* out;
  int64_t out_stride;
};

// One block per row. The sum of (x - mean)^2 is a second pass, since E[x^2] - mean^2 loses digits.
template <class T>
__global__ void normalize_kernel(NormKernel k) {
  __shared__ float scratch[kWarp];
  const float* x = k.in + blockIdx.x * k.in_stride;
  T* out = static_cast<T*>(k.out) + blockIdx.x * k.out_stride;
  float mean = 0;
  if (k.centred) {
    float sum = 0;
    for (int64_t i = threadIdx.x; i < k.columns; i += blockDim.x) sum += x[i];
    mean = block_sum(sum, scratch) / static_cast<float>(k.columns);
  }
  float squares = 0;
  for (int64_t i = threadIdx.x; i < k.columns; i += blockDim.x) {
    squares += (x[i] - mean) * (x[i] - mean);
  }
  const float variance = block_sum(squares, scratch) / static_cast<float>(k.columns);
  const float scale = 1.0f / sqrtf(variance + k.epsilon);
  // `out` may be `in`: each thread writes what it alone reads from here on.
  for (int64_t i = threadIdx.x; i < k.columns; i += blockDim.x) {
    float value = (x[i] - mean) * scale;
    if (k.weight != nullptr) value *= k.weight[i];
    if (k.bias != nullptr) value += k.bias[i];
    out[i] = narrow<T>(value);
  }
}

template <class T>
__global__ void convert_kernel(const float* in, int64_t in_stride, int64_t columns, void* out,
                               int64_t out_stride) {
  const float* x = in + blockIdx.x * in_stride;
  T* to = static_cast<T*>(out) + blockIdx.x * out_stride;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) to[i] = narrow<T>(x[i]);
}

__global__ void copy_halves_kernel(const uint16_t* in, int64_t in_stride, int64_t columns,
                                   uint16_t* out, int64_t out_stride) {
  const uint16_t* x = in + blockIdx.x * in_stride;
  uint16_t* to = out + blockIdx.x * out_stride;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) to[i] = x[i];
}

unsigned count_of(int64_t rows) {
  SPILLWAY_CHECK(rows >= 0 && rows < (int64_t{1} << 31));
  return static_cast<unsigned>(rows);
}

const float* f32(const ConstMatrixView& view) {
  return reinterpret_cast<const float*>(view.data);
}

}  // namespace

void run(CudaContext& context, const GatherArgs& args) {
  if (args.rows.empty() || !context.ready()) return;
  const WeightMatrix& table = args.table;
  std::vector<const std::byte*> slabs;
  for (const WeightSlab& slab : table.slabs) slabs.push_back(slab.data);
  GatherKernel kernel{
      .slabs = nullptr,
      .rows = nullptr,
      .slab_rows = table.slab_rows,
      .row_bytes = static_cast<int64_t>(packed_bytes(table.layout, table.format, 1, table.columns)),
      .columns = table.columns,
      .format = table.format,
      .out = nullptr,
      .out_stride = args.out.stride,
      .scale = args.scale,
      .accumulate = args.accumulate};
  // No more threads than a row has numbers.
  const auto threads = static_cast<unsigned>(
      std::min<int64_t>(kThreads, (table.columns + kWarp - 1) / kWarp * kWarp));
  constexpr size_t kEach = CudaContext::kUploadCount<int32_t>;
  for (size_t first = 0; first < args.rows.size(); first += kEach) {
    const auto rows = args.rows.subspan(first, std::min(kEach, args.rows.size() - first));
    kernel.slabs = context.upload(std::span<const std::byte* const>(slabs));
    kernel.rows = context.upload(rows);
    kernel.out = reinterpret_cast<float*>(args.out.row(static_cast<int64_t>(first)));
    if (!context.status().ok()) return;  // Not uploaded
    launch(context.stream(), {dim3(static_cast<unsigned>(rows.size())), dim3(threads)},
           gather_kernel, kernel);
  }
  context.check_launch("gather");
}

void run(CudaContext& context, const NormArgs& args) {
  if (args.in.rows == 0 || !context.ready()) return;
  const NormKernel kernel{.in = f32(args.in),
                          .in_stride = args.in.stride,
                          .columns = args.in.columns,
                          .weight = args.weight,
                          .bias = args.bias,
                          .epsilon = args.epsilon,
                          .centred = args.kind == NormKind::kLayerNorm,
                          .out = args.out.data,
                          .out_stride = args.out.stride};
  const Grid grid{dim3(count_of(args.in.rows)), dim3(kThreads)};
  const cudaStream_t stream = context.stream();
  if (args.out.dtype == DType::kF32) launch(stream, grid, normalize_kernel<float>, kernel);
  if (args.out.dtype == DType::kF16) launch(stream, grid, normalize_kernel<__half>, kernel);
  if (args.out.dtype == DType::kBF16) launch(stream, grid, normalize_kernel<__nv_bfloat16>, kernel);
  context.check_launch("normalize");
}

void run(CudaContext& context, const ConvertArgs& args) {
  if (args.in.rows == 0 || !context.ready()) return;
  const Grid grid{dim3(count_of(args.in.rows)), dim3(kThreads)};
  if (args.in.dtype != DType::kF32) {
    launch(context.stream(), grid, copy_halves_kernel,
           reinterpret_cast<const uint16_t*>(args.in.data), args.in.stride, args.in.columns,
           reinterpret_cast<uint16_t*>(args.out.data), args.out.stride);
    context.check_launch("convert");
    return;
  }
  const auto run = [&](auto kernel) {
    launch(context.stream(), grid, kernel, f32(args.in), args.in.stride, args.in.columns,
           static_cast<void*>(args.out.data), args.out.stride);
  };
  if (args.out.dtype == DType::kF32) run(convert_kernel<float>);
  if (args.out.dtype == DType::kF16) run(convert_kernel<__half>);
  if (args.out.dtype == DType::kBF16) run(convert_kernel<__nv_bfloat16>);
  context.check_launch("convert");
}

}  // namespace spillway::cuda
