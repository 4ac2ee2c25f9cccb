// Linear layers of few rows over 8-bit weights with a scale an output (base/quantized_rows.h): the
// weights are expanded in registers, used for up to sixteen rows at once and read once for these.
// (With more rows linear.cu expands a slab in memory, once, for cuBLAS.) Each weight is rounded to
// the format of the activations, as there, so that few rows and many multiply the same numbers; the
// products are summed in float32, always in the same order.
//
// A warp takes a few outputs, its lanes neighbouring words of four codes. The activations come
// through shared memory, a chunk of columns at a time.
#include "kernels/base/check.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/quant_product.cuh"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr int kChunkColumns = 512;
constexpr int kChunkWords = kChunkColumns / 4;

// Outputs per warp: a lane stores one sum of a row and an output.
template <int kRows>
constexpr int kOutputs = kRows == 16 ? 2 : 4;

// The weights of a word. Eight bits beside the exponent of 2^23 are a number whose last bit is
// worth 1; their highest bit is turned, which adds 128.
template <class T>
__device__ inline void unpack(uint32_t word, float scale, float (&weights)[4]) {
  constexpr uint32_t kTwoTo23 = 0x4b000000u;
  const uint32_t above_zero = word ^ 0x80808080u;
  SPILLWAY_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float code = __uint_as_float((above_zero >> (8 * i) & 255u) | kTwoTo23) - 8388736.0f;
    weights[i] = widen(narrow<T>(code * scale));
  }
}

// Linear layer over up to kRows rows.
template <class T, int kRows>
__global__ void __launch_bounds__(kThreads) q8_kernel(QuantProduct<T> p) {
  constexpr int kMine = kOutputs<kRows>;
  __shared__ float x[kRows][kChunkColumns];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kMine;
  const uint32_t* words[kMine];
  float scales[kMine];
  SPILLWAY_UNROLL
  for (int o = 0; o < kMine; ++o) {
    // The last output stands in for those that are not there.
    const int64_t output = first + o < p.outputs ? first + o : p.outputs - 1;
    const std::byte* const from = p.weights + output * p.row_bytes;
    scales[o] = *reinterpret_cast<const float*>(from);
    words[o] = reinterpret_cast<const uint32_t*>(from + sizeof(float));
  }
  float sums[kMine][kRows] = {};
  for (int64_t chunk = 0; chunk < p.columns; chunk += kChunkColumns) {
    __syncthreads();  // All have used the last chunk.
    for (int i = static_cast<int>(threadIdx.x); i < kChunkColumns; i += kThreads) {
      SPILLWAY_UNROLL
      for (int t = 0; t < kRows; ++t) {
        const bool there = t < p.rows && chunk + i < p.columns;
        x[t][i] = there ? widen(p.in[t * p.in_stride + chunk + i]) : 0.0f;
      }
    }
    __syncthreads();
    const int64_t rest = (p.columns - chunk + 3) / 4;
    const int count = rest < kChunkWords ? static_cast<int>(rest) : kChunkWords;
    for (int word = lane; word < count; word += kWarp) {
      float weights[kMine][4];
      SPILLWAY_UNROLL
      for (int o = 0; o < kMine; ++o) {
        unpack<T>(words[o][chunk / 4 + word], scales[o], weights[o]);
      }
      SPILLWAY_UNROLL
      for (int t = 0; t < kRows; ++t) {
        const float4 four = reinterpret_cast<const float4*>(x[t])[word];
        SPILLWAY_UNROLL
        for (int o = 0; o < kMine; ++o) {
          sums[o][t] = fmaf(weights[o][0], four.x, sums[o][t]);
          sums[o][t] = fmaf(weights[o][1], four.y, sums[o][t]);
          sums[o][t] = fmaf(weights[o][2], four.z, sums[o][t]);
          sums[o][t] = fmaf(weights[o][3], four.w, sums[o][t]);
        }
      }
    }
  }
  // A lane stores one sum: activations are compiled once, not for each of the sums.
  static_assert(kMine * kRows <= kWarp);
  float mine = 0;
  SPILLWAY_UNROLL
  for (int o = 0; o < kMine; ++o) {
    SPILLWAY_UNROLL
    for (int t = 0; t < kRows; ++t) {
      const float sum = warp_sum(sums[o][t]);
      if (lane == o * kRows + t) mine = sum;
    }
  }
  const int row = lane % kRows;
  const int64_t output = first + lane / kRows;
  if (lane < kMine * kRows && row < p.rows && output < p.outputs) store(p, row, output, mine);
}

template <class T, int kRows>
void launch_rows(cudaStream_t stream, const QuantProduct<T>& product) {
  constexpr int64_t kEach = int64_t{kWarps} * kOutputs<kRows>;
  launch(stream,
         {dim3(static_cast<unsigned>((product.outputs + kEach - 1) / kEach)), dim3(kThreads)},
         q8_kernel<T, kRows>, product);
}

}  // namespace

template <class T>
void quant_product_q8(CudaContext& context, const QuantProduct<T>& product) {
  SPILLWAY_CHECK(product.rows <= kQ8RowsAtOnce);
  const cudaStream_t stream = context.stream();
  if (product.rows == 1) return launch_rows<T, 1>(stream, product);
  if (product.rows == 2) return launch_rows<T, 2>(stream, product);
  if (product.rows <= 4) return launch_rows<T, 4>(stream, product);
  if (product.rows <= 8) return launch_rows<T, 8>(stream, product);
  launch_rows<T, 16>(stream, product);
}

template void quant_product_q8(CudaContext&, const QuantProduct<__half>&);
template void quant_product_q8(CudaContext&, const QuantProduct<__nv_bfloat16>&);

}  // namespace spillway::cuda
