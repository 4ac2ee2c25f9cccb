// Linear layers of few rows over quantised weights on tensor cores. The weights are read once for
// all rows; what is multiplied are their codes (quant_codes.cuh), and each group's sums are scaled
// in float32. A block takes some outputs and, where there are few of these, a part of the columns
// (split-K); each of its warps takes other columns, of all outputs of the block: so the activations
// are read once a block and come to registers once a chunk. All add up in an order that is fixed by
// the shape of the matrix.
//
// What bounds it is instructions as much as memory. So the weights come by asynchronous copies, two
// chunks ahead, 16 bytes at a time where the rows of the matrix allow that.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/quant_codes.cuh"
#include "kernels/cuda/quant_product.cuh"
#include "kernels/ops.h"

namespace spillway::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kSplits = kThreads / kWarp;  // Warps, of different columns
constexpr int kEach = 64;                  // A warp's columns of a chunk
constexpr int kChunk = kSplits * kEach;
constexpr int kStages = 3;  // Chunks of weights in shared memory: two ahead
constexpr int kRowsMax = 32;
constexpr int kPart = 8;                // Activations in 16 bytes
constexpr int kStride = kEach + kPart;  // Padded against bank conflicts
static_assert(kFewRows <= kRowsMax);

// For parts of the columns: four blocks for each of the 132 multiprocessors of a large device, but
// none for fewer chunks than are worth its beginning and end.
constexpr int kBlocksWanted = 4 * 132;
constexpr int64_t kChunksLeast = 4;

// What a block has of the weights, in shared memory: of each output what the chunk has of its row.
template <int kBits, int kGroup>
struct Stage {
  using G = Groups<kBits, kGroup>;
  static constexpr int kOutputs = kBits == 8 ? 32 : 64;
  static constexpr int kTall = kOutputs / 16;  // Factors above each other
  // Of a row's sums: lanes write four rows, two apart, and eight outputs of each to other banks.
  static constexpr int kPitch = kOutputs + 4;
  static constexpr int kRowBytes = kChunk / kGroup * G::kBytes;
  static constexpr int kBytes = kOutputs * kRowBytes;
  static constexpr int kPieces = kBytes / 16;
  static constexpr int kHeld = (kPieces + kThreads - 1) / kThreads;  // Pieces of a thread
  static_assert(kRowBytes % 16 == 0);

  // Shared memory for so many rows: the sums of all warps lie where the stages were.
  template <class T>
  static constexpr int shared_bytes(int rows) {
    return std::max(kStages * kBytes + kSplits * rows * kStride * static_cast<int>(sizeof(T)),
                    kSplits * rows * kPitch * static_cast<int>(sizeof(float)));
  }
  static_assert(shared_bytes<__half>(kRowsMax) <= static_cast<int>(kSharedBytesMax));
};

// Copies a block's chunks of weights, one after the other. What it needs moves on by additions:
// computed anew each time it would be a good part of the kernel's instructions.
template <int kBits, int kGroup>
class StageCopies {
  using S = Stage<kBits, kGroup>;

 public:
  // Chunks [begin, ...) of outputs [first, ...) of `outputs`; the last output stands in for those
  // that are not there.
  __device__ StageCopies(const std::byte* weights, int64_t row_bytes, int64_t first,
                         int64_t outputs, int begin, std::byte* shared)
      : row_bytes_(static_cast<uint32_t>(row_bytes)),
        last_(static_cast<uint32_t>(outputs - first > S::kOutputs ? S::kOutputs : outputs - first) -
              1),
        rows_(weights + first * row_bytes + int64_t{begin} * S::kRowBytes),
        rest_(static_cast<int>(row_bytes) - begin * S::kRowBytes),
        to_(shared) {
    const bool aligned =
        (reinterpret_cast<uintptr_t>(weights) | static_cast<uintptr_t>(row_bytes)) % 16 == 0;
    whole_ = aligned ? rest_ / S::kRowBytes : 0;
    SPILLWAY_UNROLL
    for (int i = 0; i < S::kHeld; ++i) from_[i] = from<16>(first_piece() + i * kThreads);
  }

  // Begins to copy the next; where the columns end within it, what would be behind is left.
  __device__ void begin() {
    if (whole_ > 0) {
      std::byte* const to = to_ + first_piece() * 16;
      SPILLWAY_UNROLL
      for (int i = 0; i < S::kHeld; ++i) {
        const bool all = (i + 1) * kThreads <= S::kPieces;  // Of the threads have such a piece.
        if (all || first_piece() < S::kPieces - i * kThreads) {
          copy_ahead(to + i * kThreads * 16, rows_ + from_[i], true);
        }
      }
    } else {
      SPILLWAY_NO_UNROLL
      for (int word = first_piece(); word < S::kBytes / 4; word += kThreads) {
        const bool there = word * 4 % S::kRowBytes < rest_;
        if (there) copy_word_ahead(to_ + word * 4, rows_ + from<4>(word));
      }
    }
    --whole_;
    rest_ -= S::kRowBytes;
    rows_ += S::kRowBytes;
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    to_ = stage_ == 0 ? to_ - (kStages - 1) * S::kBytes : to_ + S::kBytes;
  }

 private:
  __device__ static int first_piece() { return static_cast<int>(threadIdx.x); }

  // Where a piece of so many bytes comes from, in any chunk.
  template <int kSize>
  __device__ uint32_t from(int piece) const {
    constexpr int kInRow = S::kRowBytes / kSize;
    const auto row = static_cast<uint32_t>(piece / kInRow);
    return (row < last_ ? row : last_) * row_bytes_ + static_cast<uint32_t>(piece % kInRow * kSize);
  }

  uint32_t row_bytes_, last_;
  uint32_t from_[S::kHeld];
  const std::byte* rows_;
  int whole_;  // Chunks to come of which all columns are there, 16 bytes at a time
  int rest_;   // Bytes of a row
  std::byte* to_;
  int stage_ = 0;
};

// Copies a warp's columns of the rows, chunk by chunk, always to the same place.
template <int kRows, class T>
class ColumnCopies {
  static constexpr int kInRow = kEach / kPart, kAtOnce = kWarp / kInRow;
  static constexpr int kHeld = kRows / kAtOnce;  // Parts of a lane

 public:
  // From column `first` on.
  __device__ ColumnCopies(const QuantProduct<T>& p, int64_t first, T* to)
      : step_(kAtOnce * p.in_stride) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int part = lane % kInRow * kPart, top = lane / kInRow;
    from_ = p.in + top * p.in_stride + first + part;
    to_ = to + top * kStride + part;
    count_ = (static_cast<int>(p.rows) - top + kAtOnce - 1) / kAtOnce;
    SPILLWAY_UNROLL
    for (int i = 0; i < kHeld; ++i) {
      if (i >= count_) {
        *reinterpret_cast<uint4*>(to_ + i * kAtOnce * kStride) = make_uint4(0, 0, 0, 0);
      }
    }
  }

  __device__ void begin() {
    const T* from = from_;
    SPILLWAY_UNROLL
    for (int i = 0; i < kHeld; ++i, from += step_) {
      if (i < count_) copy_ahead(to_ + i * kAtOnce * kStride, from, true);
    }
    from_ += kChunk;
  }

 private:
  const T* from_;
  T* to_;
  int64_t step_;
  int count_;
};

// The sum over columns [first, end) by the definition: where a factor or a sum is not finite, the
// sums of codes may have lost which infinity it is.
template <int kBits, int kGroup, class T>
__device__ float plain_sum(const QuantProduct<T>& p, int64_t row, int64_t output, int64_t first,
                           int64_t end) {
  const std::byte* const weights = p.weights + output * p.row_bytes;
  float sum = 0;
  SPILLWAY_NO_UNROLL
  for (int64_t i = first; i < end; ++i) {
    const float weight = quantized_row_value<kBits, kGroup>(weights, i, p.columns);
    sum = fmaf(weight, widen(p.in[row * p.in_stride + i]), sum);
  }
  return sum;
}

// Blocks of a multiprocessor, by the registers that so many eights of rows need.
constexpr int blocks_at_least(int tiles) {
  return tiles == 4 ? 3 : tiles == 2 ? 4 : 6;
}

// kTiles: eights of rows.
template <int kBits, int kGroup, class T, int kTiles>
__global__ void __launch_bounds__(kThreads, blocks_at_least(kTiles))
    quant_mma_kernel(QuantProduct<T> p, ColumnParts parts) {
  using S = Stage<kBits, kGroup>;
  using Codes = GroupCodes<kBits, kGroup, T>;
  constexpr int kRows = kTiles * 8;
  constexpr int kOutputs = S::kOutputs;
  constexpr int kSteps = kGroup / 16;  // Products of a group
  std::byte* const shared = dynamic_shared<std::byte>();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  T* const x = reinterpret_cast<T*>(shared + kStages * S::kBytes) + warp * kRows * kStride;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kOutputs;
  const int chunks = static_cast<int>((p.columns + kChunk - 1) / kChunk);
  const int each = (chunks + parts.count - 1) / parts.count;
  const int begin = static_cast<int>(blockIdx.y) * each;
  const int end = begin + each < chunks ? begin + each : chunks;
  // The warp has no columns from this chunk on.
  const int behind = static_cast<int>((p.columns - warp * kEach + kChunk - 1) / kChunk);
  const int mine = behind < end ? behind : end;
  StageCopies<kBits, kGroup> weights(p.weights, p.row_bytes, first, p.outputs, begin, shared);
  ColumnCopies<kRows, T> activations(p, int64_t{begin} * kChunk + warp * kEach, x);
  const auto begin_x = [&](int chunk) {
    if (chunk < mine) activations.begin();
    end_of_copies();
  };
  const auto begin_weights = [&](int chunk) {
    if (chunk < end) weights.begin();
    end_of_copies();
  };
  ProductSums sums[S::kTall][kTiles];
  SPILLWAY_UNROLL
  for (auto& row : sums) {
    SPILLWAY_UNROLL
    for (ProductSums& tile : row) tile = {};
  }
  begin_weights(begin);
  begin_x(begin);
  begin_weights(begin + 1);
  // Where the lane's part of the weights begins
  const std::byte* next =
      shared + warp * (kEach / kGroup) * S::G::kBytes + fragment_group() * S::kRowBytes;
  int stage = 0;
  for (int chunk = begin; chunk < end; ++chunk) {
    wait_for_copies<1>();  // All but the weights of the next chunk
    __syncthreads();       // Those of this one are there, and those of the last have been used.
    FactorColumns columns[kTiles][kEach / 16];
    SPILLWAY_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      SPILLWAY_UNROLL
      for (int i = 0; i < kEach / 16; i += 2) {
        uint32_t four[4];
        load_blocks(x + t * 8 * kStride + i * 16, kStride, four);
        columns[t][i] = {{four[0], four[1]}};
        columns[t][i + 1] = {{four[2], four[3]}};
      }
    }
    __syncwarp();  // The activations are in registers.
    begin_x(chunk + 1);
    begin_weights(chunk + 2);
    const std::byte* const groups = next;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    next = stage == 0 ? next - (kStages - 1) * S::kBytes : next + S::kBytes;
    if (chunk >= mine) continue;
    SPILLWAY_UNROLL
    for (int i = 0; i < kEach / kGroup; ++i) {
      const FactorColumns(*here)[kEach / 16] = columns;
      ProductSums x_sums[kTiles];
      SPILLWAY_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        x_sums[t] = {};
        SPILLWAY_UNROLL
        for (int step = 0; step < kSteps; ++step) {
          constexpr uint32_t kOne = kOnes<T>;
          multiply_add<T>(x_sums[t], {{kOne, kOne, kOne, kOne}}, here[t][i * kSteps + step]);
        }
      }
      SPILLWAY_UNROLL
      for (int tall = 0; tall < S::kTall; ++tall) {
        Codes codes[2];
        SPILLWAY_UNROLL
        for (int o = 0; o < 2; ++o) {
          codes[o].load(groups + i * S::G::kBytes + (tall * 16 + o * 8) * S::kRowBytes);
        }
        ProductSums of_codes[kTiles];
        SPILLWAY_UNROLL
        for (ProductSums& tile : of_codes) tile = {};
        SPILLWAY_UNROLL
        for (int step = 0; step < kSteps; ++step) {
          const FactorRows rows{{codes[0].pair(2 * step), codes[1].pair(2 * step),
                                 codes[0].pair(2 * step + 1), codes[1].pair(2 * step + 1)}};
          SPILLWAY_UNROLL
          for (int t = 0; t < kTiles; ++t) {
            multiply_add<T>(of_codes[t], rows, here[t][i * kSteps + step]);
          }
        }
        SPILLWAY_UNROLL
        for (int t = 0; t < kTiles; ++t) {
          SPILLWAY_UNROLL
          for (int j = 0; j < 4; ++j) {
            float& sum = sums[tall][t].x[j];
            sum = fmaf(codes[j / 2].minimum(), x_sums[t].x[j % 2], sum);
            sum = fmaf(codes[j / 2].scale(), of_codes[t].x[j], sum);
          }
        }
      }
    }
  }
  __syncthreads();                                       // The weights have been used.
  auto* const added = reinterpret_cast<float*>(shared);  // [kSplits][kRows][kPitch]
  SPILLWAY_UNROLL
  for (int tall = 0; tall < S::kTall; ++tall) {
    SPILLWAY_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      SPILLWAY_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = t * 8 + fragment_pair() + i % 2;
        const int output = tall * 16 + fragment_group() + i / 2 * 8;
        added[(warp * kRows + row) * S::kPitch + output] = sums[tall][t].x[i];
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kOutputs * kRows; i += kThreads) {
    const int row = i / kOutputs, output = i % kOutputs;
    const int64_t at = first + output;
    if (row >= p.rows || at >= p.outputs) continue;
    float sum = 0;
    for (int s = 0; s < kSplits; ++s) sum += added[(s * kRows + row) * S::kPitch + output];
    if (sum * 0.0f != 0.0f) {
      const int64_t last = int64_t{end} * kChunk;
      sum = plain_sum<kBits, kGroup>(p, row, at, int64_t{begin} * kChunk,
                                     last < p.columns ? last : p.columns);
    }
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
  using S = Stage<kBits, kGroup>;
  const auto run = [&](auto kernel, int tiles) {
    launch(stream,
           {dim3(blocks(product.outputs, S::kOutputs), static_cast<unsigned>(parts.count)),
            dim3(kThreads), static_cast<size_t>(S::template shared_bytes<T>(tiles * 8))},
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
  with_groups(format, [&](auto bits, auto group) {
    constexpr int kBits = decltype(bits)::value, kGroup = decltype(group)::value;
    const int64_t wanted = kBlocksWanted / blocks(outputs, Stage<kBits, kGroup>::kOutputs);
    const int64_t most = std::max<int64_t>(1, chunks / kChunksLeast);
    ColumnParts parts{static_cast<int>(std::clamp<int64_t>(wanted, 1, most)), nullptr};
    if (parts.count > 1) {
      parts.sums = reinterpret_cast<float*>(context.scratch(
          static_cast<size_t>(parts.count * product.rows * product.outputs) * sizeof(float)));
      if (parts.sums == nullptr) return;  // The context has the reason.
    }
    launch_rows<kBits, kGroup>(context.stream(), product, parts);
  });
}

template void quant_product_mma(CudaContext&, Format, int64_t, const QuantProduct<__half>&);
template void quant_product_mma(CudaContext&, Format, int64_t, const QuantProduct<__nv_bfloat16>&);

}  // namespace spillway::cuda
