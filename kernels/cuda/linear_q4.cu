// Linear layers of few rows over 4-bit weights: bound by reading the weights, which are expanded in
// registers, used for eight rows at once and read once for these. (With more rows linear.cu expands
// a slab in memory, once, for cuBLAS.) Each weight is rounded to the format of the activations, as
// there, and products are summed in float32, always in the same order: a row's result is the same
// alone and among others here.
//
// A warp takes four outputs. Eight lanes take a group of 64 weights, a word of eight nibbles each.
// The activations come through shared memory, a chunk of columns at a time, in the order in which
// the lanes want them: the j-th numbers of neighbouring words lie side by side.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/linear_q4.h"
#include "kernels/cuda/q4.cuh"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr int kOutputs = 4;  // Outputs per warp
constexpr int kNibbles = kQ4NibblesPerWord;
constexpr int kWords = kQ4Group / kNibbles;  // Words per whole group
constexpr int64_t kGroupBytes = 4 + kQ4Group / 2;
constexpr int64_t kChunkGroups = 16;
// The pad keeps threads that store neighbouring columns out of each other's banks.
constexpr int kPitch = static_cast<int>(kChunkGroups) * kWords + 8;

// T: the format of the input, and of a narrow output.
template <class T>
struct Q4Product {
  const T* in;
  int64_t in_stride, rows, columns;
  const std::byte* weights;
  int64_t row_bytes, outputs;
  const float* bias;
  Activation activation;
  float scale;
  bool accumulate, narrow_out;
  void* out;
  int64_t out_stride;

  __device__ int64_t groups() const { return (columns + kQ4Group - 1) / kQ4Group; }
  // Words per group: fewer in the last, where that is short.
  __device__ int words(int64_t group) const {
    const int64_t rest = columns - group * kQ4Group;
    return rest < kQ4Group ? static_cast<int>((rest + kNibbles - 1) / kNibbles) : kWords;
  }
};

// Loads the columns of the groups from `chunk` on, of every row, into shared memory; 0 past the
// last column.
template <int Count, class T>
__device__ void stage(const Q4Product<T>& p, int64_t chunk, float (*x)[kNibbles][kPitch]) {
  for (int64_t i = threadIdx.x; i < kChunkGroups * kQ4Group; i += blockDim.x) {
    const int64_t group = i / kQ4Group, column = chunk * kQ4Group + i;
    if (chunk + group >= p.groups()) return;
    const int words = p.words(chunk + group);
    const int at = static_cast<int>(i % kQ4Group);
    if (at >= words * kNibbles) continue;
    const int nibble = words == kWords ? at / kWords : at / words;
    const int slot = static_cast<int>(group) * kWords + at - nibble * words;
    SPILLWAY_UNROLL
    for (int t = 0; t < Count; ++t) {
      const bool there = t < p.rows && column < p.columns;
      x[t][nibble][slot] = there ? widen(p.in[t * p.in_stride + column]) : 0.0f;
    }
  }
}

// Expands the eight weights of a word; zeros where the output does not exist.
template <class T>
__device__ void unpack(const Q4Product<T>& p, int64_t output, int64_t group, int word,
                       float (&weights)[kNibbles]) {
  uint32_t nibbles = 0;
  float scale = 0, minimum = 0;
  if (output < p.outputs) {
    const std::byte* from = p.weights + output * p.row_bytes + group * kGroupBytes;
    nibbles = reinterpret_cast<const uint32_t*>(from + 4)[word];
    scale = widen(reinterpret_cast<const __half*>(from)[0]);
    minimum = widen(reinterpret_cast<const __half*>(from)[1]);
  }
  SPILLWAY_UNROLL
  for (int i = 0; i < kNibbles; ++i) {
    const auto nibble = static_cast<float>(nibbles >> (4 * i) & 15u);
    weights[i] = widen(narrow<T>(fmaf(nibble, scale, minimum)));
  }
}

template <class T>
__device__ void store(const Q4Product<T>& p, int64_t row, int64_t output, float sum) {
  sum *= p.scale;
  if (p.bias != nullptr) {
    // In the format of the output, as cuBLASLt has it: few rows and many give the same.
    const float bias = p.bias[output];
    sum += p.narrow_out ? widen(narrow<T>(bias)) : bias;
  }
  const int64_t at = row * p.out_stride + output;
  if (p.narrow_out) {
    static_cast<T*>(p.out)[at] = narrow<T>(activate(p.activation, sum));
  } else {
    float* out = static_cast<float*>(p.out) + at;
    *out = p.accumulate ? *out + sum : activate(p.activation, sum);
  }
}

// Linear layer over up to `Count` rows.
template <class T, int Count>
__global__ void __launch_bounds__(kThreads) q4_kernel(Q4Product<T> p) {
  __shared__ float x[Count][kNibbles][kPitch];
  const int lane = threadIdx.x % kWarp, word = lane % kWords;
  const int64_t first =
      (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kOutputs;
  float sums[kOutputs][Count] = {};
  for (int64_t chunk = 0; chunk < p.groups(); chunk += kChunkGroups) {
    __syncthreads();  // All have used the last chunk.
    stage<Count>(p, chunk, x);
    __syncthreads();
    for (int64_t i = lane / kWords; i < kChunkGroups; i += kWarp / kWords) {
      const int64_t group = chunk + i;
      if (group >= p.groups() || word >= p.words(group)) break;
      float weights[kOutputs][kNibbles];
      SPILLWAY_UNROLL
      for (int o = 0; o < kOutputs; ++o) unpack(p, first + o, group, word, weights[o]);
      const int slot = static_cast<int>(i) * kWords + word;
      SPILLWAY_UNROLL
      for (int t = 0; t < Count; ++t) {
        SPILLWAY_UNROLL
        for (int j = 0; j < kNibbles; ++j) {
          const float value = x[t][j][slot];
          SPILLWAY_UNROLL
          for (int o = 0; o < kOutputs; ++o) {
            sums[o][t] = fmaf(weights[o][j], value, sums[o][t]);
          }
        }
      }
    }
  }
  SPILLWAY_UNROLL
  for (int o = 0; o < kOutputs; ++o) {
    SPILLWAY_UNROLL
    for (int t = 0; t < Count; ++t) {
      const float sum = warp_sum(sums[o][t]);
      const bool mine = lane == (o * Count + t) % kWarp;
      if (mine && t < p.rows && first + o < p.outputs) store(p, t, first + o, sum);
    }
  }
}

// Rows per launch: more rows run in parts, which find the weights in the cache.
constexpr int64_t kRowsAtOnce = 8;

template <class T>
void launch_product(cudaStream_t stream, const Q4Product<T>& product) {
  SPILLWAY_CHECK(product.rows <= kRowsAtOnce);
  constexpr int64_t kEach = int64_t{kWarps} * kOutputs;
  const Grid grid{dim3(static_cast<unsigned>((product.outputs + kEach - 1) / kEach)),
                  dim3(kThreads)};
  if (product.rows == 1) return launch(stream, grid, q4_kernel<T, 1>, product);
  if (product.rows == 2) return launch(stream, grid, q4_kernel<T, 2>, product);
  if (product.rows <= 4) return launch(stream, grid, q4_kernel<T, 4>, product);
  launch(stream, grid, q4_kernel<T, 8>, product);
}

template <class T>
void run(CudaContext& context, const LinearArgs& args) {
  int64_t first = 0;
  for (const WeightSlab& slab : args.weight.slabs) {
    const Q4Product<T> product{
        .in = reinterpret_cast<const T*>(args.in.data),
        .in_stride = args.in.stride,
        .rows = args.in.rows,
        .columns = args.in.columns,
        .weights = slab.data,
        .row_bytes = static_cast<int64_t>(q4_row_bytes(args.in.columns)),
        .outputs = slab.rows,
        .bias = args.bias == nullptr ? nullptr : args.bias + first,
        .activation = args.activation,
        .scale = args.scale,
        .accumulate = args.accumulate,
        .narrow_out = args.out.dtype != DType::kF32,
        .out = args.out.data + static_cast<size_t>(first) * dtype_bytes(args.out.dtype),
        .out_stride = args.out.stride};
    for (int64_t row = 0; row < args.in.rows; row += kRowsAtOnce) {
      Q4Product<T> part = product;
      part.rows = std::min(kRowsAtOnce, args.in.rows - row);
      part.in += row * product.in_stride;
      part.out = args.out.slice_rows(row, part.rows).data +
                 static_cast<size_t>(first) * dtype_bytes(args.out.dtype);
      launch_product(context.stream(), part);
    }
    first += slab.rows;
  }
  context.check_launch("linear, 4-bit");
}

}  // namespace

bool takes_linear_q4(const LinearArgs& args) {
  const bool sixteen_bits = args.in.dtype == DType::kBF16 || args.in.dtype == DType::kF16;
  return args.weight.format == Format::kQ4 && sixteen_bits && args.in.rows <= kFewRows;
}

void linear_q4(CudaContext& context, const LinearArgs& args) {
  SPILLWAY_CHECK(args.weight.layout == MatrixLayout::kRows && args.in.rows <= kFewRows);
  SPILLWAY_CHECK(args.out.dtype == DType::kF32 || args.out.dtype == args.in.dtype);
  if (args.in.dtype == DType::kF16) return run<__half>(context, args);
  run<__nv_bfloat16>(context, args);
}

}  // namespace spillway::cuda
