// Linear layers of few rows over weights quantised in groups, of shapes that linear_quant_mma.cu
// does not take: the weights are expanded in registers, used for eight rows at once and read once
// for these. (With more rows linear.cu expands a slab in memory, once, for cuBLAS.) Each weight is
// rounded to the format of the activations, as there, and products are summed in float32, always in
// the same order: a row's result is the same alone and among others here.
//
// A warp takes four outputs. As many lanes take a group of weights as it has words, one each (q4:
// eight lanes, eight nibbles a word).
// The activations come through shared memory, a chunk of columns at a time, in the order in which
// the lanes want them: the j-th numbers of neighbouring words lie side by side.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/linear_quant.h"
#include "kernels/cuda/quant_product.cuh"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr int kOutputs = 4;  // Outputs per warp
constexpr int64_t kChunkColumns = 1024;

// The pad keeps threads that store neighbouring columns out of each other's banks.
template <int kBits, int kGroup>
constexpr int kPitch = static_cast<int>(kChunkColumns) / kGroup* Groups<kBits, kGroup>::kWords + 8;

// The groups of a product's rows.
template <int kBits, int kGroup>
struct RowGroups {
  using G = Groups<kBits, kGroup>;
  int64_t columns;

  __device__ int64_t count() const { return (columns + kGroup - 1) / kGroup; }
  // Words per group: fewer in the last, where that is short.
  __device__ int words(int64_t group) const {
    const int64_t rest = columns - group * kGroup;
    return rest < kGroup ? static_cast<int>((rest + G::kFields - 1) / G::kFields) : G::kWords;
  }
};

// Loads the columns of the groups from `chunk` on, of every row, into shared memory; 0 past the
// last column.
template <int kBits, int kGroup, int Count, class T>
__device__ void stage(const QuantProduct<T>& p, int64_t chunk,
                      float (*x)[32 / kBits][kPitch<kBits, kGroup>]) {
  using G = Groups<kBits, kGroup>;
  const RowGroups<kBits, kGroup> groups{p.columns};
  for (int64_t i = threadIdx.x; i < kChunkColumns; i += blockDim.x) {
    const int64_t group = i / kGroup, column = chunk * kGroup + i;
    if (chunk + group >= groups.count()) return;
    const int words = groups.words(chunk + group);
    const int at = static_cast<int>(i % kGroup);
    if (at >= words * G::kFields) continue;
    const int field = words == G::kWords ? at / G::kWords : at / words;
    const int slot = static_cast<int>(group) * G::kWords + at - field * words;
    SPILLWAY_UNROLL
    for (int t = 0; t < Count; ++t) {
      const bool there = t < p.rows && column < p.columns;
      x[t][field][slot] = there ? widen(p.in[t * p.in_stride + column]) : 0.0f;
    }
  }
}

// Expands the weights of a word; zeros where the output does not exist.
template <int kBits, int kGroup, class T>
__device__ void unpack(const QuantProduct<T>& p, int64_t output, int64_t group, int word,
                       float (&weights)[32 / kBits]) {
  using G = Groups<kBits, kGroup>;
  uint32_t codes = 0;
  float scale = 0, minimum = 0;
  if (output < p.outputs) {
    const std::byte* from = p.weights + output * p.row_bytes + group * G::kBytes;
    codes = reinterpret_cast<const uint32_t*>(from + 4)[word];
    scale = widen(reinterpret_cast<const __half*>(from)[0]);
    minimum = widen(reinterpret_cast<const __half*>(from)[1]);
  }
  SPILLWAY_UNROLL
  for (int i = 0; i < G::kFields; ++i) {
    const auto code = static_cast<float>(codes >> (kBits * i) & G::kMask);
    weights[i] = widen(narrow<T>(fmaf(code, scale, minimum)));
  }
}

// Linear layer over up to `Count` rows.
template <int kBits, int kGroup, class T, int Count>
__global__ void __launch_bounds__(kThreads) quant_kernel(QuantProduct<T> p) {
  using G = Groups<kBits, kGroup>;
  constexpr int kChunkGroups = static_cast<int>(kChunkColumns) / kGroup;
  __shared__ float x[Count][G::kFields][kPitch<kBits, kGroup>];
  const RowGroups<kBits, kGroup> groups{p.columns};
  const int lane = threadIdx.x % kWarp, word = lane % G::kWords;
  const int64_t first =
      (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kOutputs;
  float sums[kOutputs][Count] = {};
  for (int64_t chunk = 0; chunk < groups.count(); chunk += kChunkGroups) {
    __syncthreads();  // All have used the last chunk.
    stage<kBits, kGroup, Count>(p, chunk, x);
    __syncthreads();
    for (int64_t i = lane / G::kWords; i < kChunkGroups; i += kWarp / G::kWords) {
      const int64_t group = chunk + i;
      if (group >= groups.count() || word >= groups.words(group)) break;
      float weights[kOutputs][G::kFields];
      SPILLWAY_UNROLL
      for (int o = 0; o < kOutputs; ++o) {
        unpack<kBits, kGroup>(p, first + o, group, word, weights[o]);
      }
      const int slot = static_cast<int>(i) * G::kWords + word;
      SPILLWAY_UNROLL
      for (int t = 0; t < Count; ++t) {
        SPILLWAY_UNROLL
        for (int j = 0; j < G::kFields; ++j) {
          const float value = x[t][j][slot];
          SPILLWAY_UNROLL
          for (int o = 0; o < kOutputs; ++o) {
            sums[o][t] = fmaf(weights[o][j], value, sums[o][t]);
          }
        }
      }
    }
  }
  // A lane stores one sum: activations are compiled once, not for each of the sums.
  static_assert(kOutputs * Count <= kWarp);
  float mine = 0;
  SPILLWAY_UNROLL
  for (int o = 0; o < kOutputs; ++o) {
    SPILLWAY_UNROLL
    for (int t = 0; t < Count; ++t) {
      const float sum = warp_sum(sums[o][t]);
      if (lane == o * Count + t) mine = sum;
    }
  }
  const int row = lane % Count;
  const int64_t output = first + lane / Count;
  if (lane < kOutputs * Count && row < p.rows && output < p.outputs) store(p, row, output, mine);
}

// Rows per launch: more rows run in parts, which find the weights in the cache.
constexpr int64_t kRowsAtOnce = 8;

template <int kBits, int kGroup, class T>
void launch_product(cudaStream_t stream, const QuantProduct<T>& product) {
  SPILLWAY_CHECK(product.rows <= kRowsAtOnce);
  constexpr int64_t kEach = int64_t{kWarps} * kOutputs;
  const Grid grid{dim3(static_cast<unsigned>((product.outputs + kEach - 1) / kEach)),
                  dim3(kThreads)};
  const auto run = [&](auto kernel) { launch(stream, grid, kernel, product); };
  if (product.rows == 1) return run(quant_kernel<kBits, kGroup, T, 1>);
  if (product.rows == 2) return run(quant_kernel<kBits, kGroup, T, 2>);
  if (product.rows <= 4) return run(quant_kernel<kBits, kGroup, T, 4>);
  run(quant_kernel<kBits, kGroup, T, 8>);
}

// At most `count` rows of a product, from `row` on.
template <class T>
QuantProduct<T> rows_of(const QuantProduct<T>& product, int64_t row, int64_t count) {
  const size_t out_bytes = product.narrow_out ? sizeof(T) : sizeof(float);
  QuantProduct<T> part = product;
  part.rows = std::min(count, product.rows - row);
  part.in += row * product.in_stride;
  part.out = static_cast<std::byte*>(product.out) +
             static_cast<size_t>(row * product.out_stride) * out_bytes;
  return part;
}

// One after the other on the device.
template <class T>
void run_rows(CudaContext& context, Format format, const QuantProduct<T>& product) {
  if (format == Format::kQ8) {
    for (int64_t row = 0; row < product.rows; row += kQ8RowsAtOnce) {
      quant_product_q8(context, rows_of(product, row, kQ8RowsAtOnce));
    }
    return;
  }
  for (int64_t row = 0; row < product.rows; row += kRowsAtOnce) {
    const QuantProduct<T> part = rows_of(product, row, kRowsAtOnce);
    with_groups(format, [&](auto bits, auto group) {
      launch_product<decltype(bits)::value, decltype(group)::value>(context.stream(), part);
    });
  }
}

template <class T>
void run(CudaContext& context, const LinearArgs& args) {
  const Format format = args.weight.format;
  const auto row_bytes = static_cast<int64_t>(format_row_bytes(format, args.in.columns));
  const std::span<const WeightSlab> slabs = args.weight.slabs;
  int64_t first = 0;
  for (size_t i = 0; i < slabs.size();) {
    const std::byte* const data = slabs[i].data;
    int64_t outputs = 0;  // Of slabs that lie one behind the other
    for (; i < slabs.size() && slabs[i].data == data + outputs * row_bytes; ++i) {
      outputs += slabs[i].rows;
    }
    const QuantProduct<T> product{
        .in = reinterpret_cast<const T*>(args.in.data),
        .in_stride = args.in.stride,
        .rows = args.in.rows,
        .columns = args.in.columns,
        .weights = data,
        .row_bytes = row_bytes,
        .outputs = outputs,
        .bias = args.bias == nullptr ? nullptr : args.bias + first,
        .activation = args.activation,
        .scale = args.scale,
        .accumulate = args.accumulate,
        .narrow_out = args.out.dtype != DType::kF32,
        .out = args.out.data + static_cast<size_t>(first) * dtype_bytes(args.out.dtype),
        .out_stride = args.out.stride};
    if (is_grouped(format) &&
        takes_mma(product.columns, product.in_stride, format_traits(format).group)) {
      quant_product_mma(context, format, args.weight.rows, product);
    } else {
      run_rows(context, format, product);
    }
    if (!context.ready()) return;
    first += outputs;
  }
  context.check_launch("linear, quantised");
}

}  // namespace

bool takes_linear_quant(const LinearArgs& args) {
  const bool sixteen_bits = args.in.dtype == DType::kBF16 || args.in.dtype == DType::kF16;
  return is_quantized(args.weight.format) && sixteen_bits && args.in.rows <= kFewRows;
}

void linear_quant(CudaContext& context, const LinearArgs& args) {
  SPILLWAY_CHECK(args.weight.layout == MatrixLayout::kRows && args.in.rows <= kFewRows);
  SPILLWAY_CHECK(args.out.dtype == DType::kF32 || args.out.dtype == args.in.dtype);
  if (args.in.dtype == DType::kF16) return run<__half>(context, args);
  run<__nv_bfloat16>(context, args);
}

}  // namespace spillway::cuda
