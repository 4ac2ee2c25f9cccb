// Linear layers of few rows over quantised weights on tensor cores. As in linear_quant.cu the
// weights are read once for all rows, expanded in registers and rounded to the format of the
// activations; there they are the first factor of a product with the activations' columns. A block
// takes 32 outputs and, where there are few of these, a part of the columns (split-K); its warps
// share the groups among them. All add up in an order that is fixed by the shape of the matrix.
//
// The words of a group hold its numbers so that a lane has those of its part of the factor in words
// that lie side by side (quant.cuh: word w has numbers w, kWords + w, ...): with eight words a
// group these are the columns 2 t and 2 t + 1 of each eight; with four they are 4 i + t, and the
// activations are put in that order.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/quant_product.cuh"
#include "kernels/ops.h"

namespace spillway::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kOutputs = 32;                   // Of a block; of a warp 16
constexpr int kSplits = kThreads / kWarp / 2;  // Warps with the same outputs
constexpr int kRowsMax = 32;
constexpr int kChunk = 256;          // Columns in half of the shared memory
constexpr int kStride = kChunk + 8;  // Padded against bank conflicts
constexpr int kPart = 8;             // Numbers in 16 bytes
constexpr int kBlocksWanted = 512;   // So many keep large devices busy
static_assert(kFewRows <= kRowsMax);
static_assert(2 * kRowsMax * kStride * 2 <= static_cast<int>(kSharedBytesMax));
static_assert(kSplits * kOutputs * kRowsMax * 4 <= 2 * kRowsMax * kStride * 2);

// A lane's part of a group of two outputs: its words, and what all numbers of the group share.
template <int kBits, int kGroup>
struct GroupPart {
  using G = Groups<kBits, kGroup>;
  static constexpr int kHeld = G::kWords / 4;  // Words of an output that a lane holds
  static constexpr int kSteps = kGroup / 16;   // Products of a group
  static_assert(kHeld == 1 || kHeld == 2);

  uint32_t words[2][kHeld];
  float scale[2], minimum[2];

  // From the group's beginning in the rows of both outputs, null where there is no such output;
  // zeros where there is no such group.
  __device__ void load(const std::byte* const* from, int64_t group, bool there) {
    SPILLWAY_UNROLL
    for (int o = 0; o < 2; ++o) {
      if (from[o] == nullptr || !there) {
        scale[o] = minimum[o] = 0;
        SPILLWAY_UNROLL
        for (uint32_t& word : words[o]) word = 0;
        continue;
      }
      const std::byte* const begin = from[o] + group * G::kBytes;
      const float2 shared = __half22float2(*reinterpret_cast<const __half2*>(begin));
      const auto* at = reinterpret_cast<const uint32_t*>(begin + sizeof(__half2));
      scale[o] = shared.x;
      minimum[o] = shared.y;
      SPILLWAY_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        words[o][i] = at[static_cast<int>(threadIdx.x) % 4 * kHeld + i];
      }
    }
  }

  __device__ float number(int output, int word, int field) const {
    const uint32_t code = words[output][word] >> (kBits * field) & G::kMask;
    constexpr uint32_t kTwoTo23 = 0x4b000000u;  // A float whose last bit is worth 1
    return fmaf(__uint_as_float(code | kTwoTo23) - 8388608.0f, scale[output], minimum[output]);
  }

  // The factor of the group's step'th 16 columns.
  template <class T>
  __device__ FactorRows factor(int step) const {
    FactorRows rows;
    SPILLWAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int output = i % 2, right = i / 2;
      float two[2];
      SPILLWAY_UNROLL
      for (int j = 0; j < 2; ++j) {
        two[j] = kHeld == 2 ? number(output, j, 2 * step + right)
                            : number(output, 0, 4 * step + 2 * right + j);
      }
      rows.x[i] = pack_two<T>(two[0], two[1]);
    }
    return rows;
  }
};

// Where a column of 16 lies in shared memory.
template <int kHeld>
__device__ int place_of(int column) {
  if (kHeld == 2) return column;
  const int part = column / 4, lane = column % 4;
  return part / 2 * 8 + lane * 2 + part % 2;
}

// Begins to load columns [first, first + kChunk) of the rows; zeros where there are none.
template <int kHeld, class T>
__device__ void load_columns(const QuantProduct<T>& p, int64_t first, int rows, T* x) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * (kChunk / kPart); i += kThreads) {
    const int row = i / (kChunk / kPart), column = i % (kChunk / kPart) * kPart;
    const bool there = row < p.rows && first + column < p.columns;
    const T* const from = p.in + (there ? row * p.in_stride + first + column : 0);
    T* const to = x + row * kStride;
    if constexpr (kHeld == 2) {
      copy_ahead(to + column, from, there);
    } else {
      for (int j = 0; j < kPart; ++j) {
        to[column / 16 * 16 + place_of<kHeld>(column % 16 + j)] = there ? from[j] : narrow<T>(0);
      }
    }
  }
  end_of_copies();
}

// kTiles: eights of rows.
template <int kBits, int kGroup, class T, int kTiles>
__global__ void __launch_bounds__(kThreads) quant_mma_kernel(QuantProduct<T> p, ColumnParts parts) {
  using Part = GroupPart<kBits, kGroup>;
  constexpr int kGroups = kChunk / kGroup / kSplits;  // Of a warp in a chunk
  constexpr int kRows = kTiles * 8;
  static_assert(kGroups >= 1);
  T* const x = dynamic_shared<T>();  // Two chunks in turn
  const int warp = static_cast<int>(threadIdx.x) / kWarp, split = warp / 2;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kOutputs + warp % 2 * 16;
  const std::byte* from[2];
  SPILLWAY_UNROLL
  for (int o = 0; o < 2; ++o) {
    const int64_t output = first + fragment_group() + 8 * o;
    from[o] = output < p.outputs ? p.weights + output * p.row_bytes : nullptr;
  }
  const int groups = static_cast<int>(p.columns / kGroup);
  const int chunks = static_cast<int>((p.columns + kChunk - 1) / kChunk);
  const int each = (chunks + parts.count - 1) / parts.count;
  const int begin = static_cast<int>(blockIdx.y) * each;
  const int end = begin + each < chunks ? begin + each : chunks;
  Part now[kGroups], next[kGroups];
  const auto load = [&](int chunk, Part(&to)[kGroups]) {
    SPILLWAY_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      const int group = chunk * (kChunk / kGroup) + split * kGroups + i;
      to[i].load(from, group, group < groups);
    }
  };
  const auto buffer = [&](int chunk) { return x + chunk % 2 * kRows * kStride; };
  ProductSums sums[kTiles];
  SPILLWAY_UNROLL
  for (ProductSums& tile : sums) tile = {};
  if (begin < end) {
    load_columns<Part::kHeld>(p, int64_t{begin} * kChunk, kRows, buffer(begin));
    load(begin, next);
  }
  for (int chunk = begin; chunk < end; ++chunk) {
    SPILLWAY_UNROLL
    for (int i = 0; i < kGroups; ++i) now[i] = next[i];
    if (chunk + 1 < end) {
      load_columns<Part::kHeld>(p, int64_t{chunk + 1} * kChunk, kRows, buffer(chunk + 1));
      load(chunk + 1, next);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();  // The columns are there.
    SPILLWAY_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      SPILLWAY_UNROLL
      for (int step = 0; step < Part::kSteps; step += 2) {
        const FactorRows weights[2] = {now[i].template factor<T>(step),
                                       now[i].template factor<T>(step + 1)};
        const T* const at = buffer(chunk) + (split * kGroups + i) * kGroup + step * 16;
        SPILLWAY_UNROLL
        for (int t = 0; t < kTiles; ++t) {
          uint32_t four[4];
          load_blocks(at + t * 8 * kStride, kStride, four);
          multiply_add<T>(sums[t], weights[0], {{four[0], four[1]}});
          multiply_add<T>(sums[t], weights[1], {{four[2], four[3]}});
        }
      }
    }
    __syncthreads();  // The columns have been used.
  }
  auto* const added = reinterpret_cast<float*>(x);  // [kSplits][kOutputs][kRows]
  SPILLWAY_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    SPILLWAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int output = warp % 2 * 16 + fragment_group() + i / 2 * 8;
      added[(split * kOutputs + output) * kRows + t * 8 + fragment_pair() + i % 2] = sums[t].x[i];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kOutputs * kRows; i += kThreads) {
    const int row = i / kOutputs, output = i % kOutputs;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kOutputs + output;
    if (row >= p.rows || at >= p.outputs) continue;
    float sum = 0;
    for (int s = 0; s < kSplits; ++s) sum += added[(s * kOutputs + output) * kRows + row];
    if (parts.count == 1) {
      store(p, row, at, sum);
    } else {
      parts.sums[(blockIdx.y * p.rows + row) * p.outputs + at] = sum;
    }
  }
}

template <class T>
__global__ void add_parts_kernel(QuantProduct<T> p, ColumnParts parts) {
  const int64_t output = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (output >= p.outputs) return;
  float sum = 0;
  for (int i = 0; i < parts.count; ++i) {
    sum += parts.sums[(i * p.rows + blockIdx.y) * p.outputs + output];
  }
  store(p, blockIdx.y, output, sum);
}

unsigned blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

template <int kBits, int kGroup, class T>
void launch_rows(cudaStream_t stream, const QuantProduct<T>& product, const ColumnParts& parts) {
  const auto run = [&](auto kernel, int tiles) {
    const size_t rows = static_cast<size_t>(tiles) * 8;
    launch(stream,
           {dim3(blocks(product.outputs, kOutputs), static_cast<unsigned>(parts.count)),
            dim3(kThreads),
            std::max(2 * rows * kStride * sizeof(T), kSplits * kOutputs * rows * sizeof(float))},
           kernel, product, parts);
  };
  if (product.rows <= 8) {
    run(quant_mma_kernel<kBits, kGroup, T, 1>, 1);
  } else if (product.rows <= 16) {
    run(quant_mma_kernel<kBits, kGroup, T, 2>, 2);
  } else {
    run(quant_mma_kernel<kBits, kGroup, T, 4>, 4);
  }
  if (parts.count == 1) return;
  launch(stream,
         {dim3(blocks(product.outputs, kThreads), static_cast<unsigned>(product.rows)),
          dim3(kThreads)},
         add_parts_kernel<T>, product, parts);
}

}  // namespace

template <class T>
void quant_product_mma(CudaContext& context, Format format, int64_t outputs,
                       const QuantProduct<T>& product) {
  const int64_t chunks = (product.columns + kChunk - 1) / kChunk;
  ColumnParts parts{static_cast<int>(std::clamp<int64_t>(kBlocksWanted / blocks(outputs, kOutputs),
                                                         1, std::max<int64_t>(1, chunks / 4))),
                    nullptr};
  if (parts.count > 1) {
    parts.sums = reinterpret_cast<float*>(context.scratch(
        static_cast<size_t>(parts.count * product.rows * product.outputs) * sizeof(float)));
    if (parts.sums == nullptr) return;  // The context has the reason.
  }
  with_groups(format, [&](auto bits, auto group) {
    launch_rows<decltype(bits)::value, decltype(group)::value>(context.stream(), product, parts);
  });
}

template void quant_product_mma(CudaContext&, Format, int64_t, const QuantProduct<__half>&);
template void quant_product_mma(CudaContext&, Format, int64_t, const QuantProduct<__nv_bfloat16>&);

}  // namespace spillway::cuda
