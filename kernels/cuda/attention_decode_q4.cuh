// Decode attention over 4-bit rows of 64 or 128 numbers, on tensor cores and from the packed form:
// a group's part of a dot product is scale * (codes . q) + minimum * (sum of q), and its part of
// the weighted values, column by column, the sum of (weight * scale) * code, plus the sum of weight
// * minimum, which all columns of a group share. What is multiplied are the codes, as
// quant_codes.cuh makes them: small integers, exact in bf16.
//
// The other factor is float32 and is cut into two numbers of bf16, x = high + low, 16 bits of
// significand together (error 2^-17 of each number; a float16 cache rounds its rows to 2^-12). They
// are neighbouring columns of one product, whose second factor has eight: so four query heads cost
// what one does. Sums are float32.
//
// All rows of the split are copied to shared memory at once, keys first: there is enough under way
// to hide the latency of memory, and keys are multiplied while values arrive.
#pragma once

#include "kernels/cuda/attention_split.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/quant_codes.cuh"

namespace spillway::cuda {

// Query heads of one product: each has two of its eight columns.
constexpr int kQ4HeadsOfTile = 4;

// A number as two of bf16.
class TwoParts {
 public:
  __device__ explicit TwoParts(float x)
      : high_(narrow<__nv_bfloat16>(x)), low_(narrow<__nv_bfloat16>(x - widen(high_))) {}

  // As neighbouring columns of a factor, whose columns are rows in memory.
  __device__ void put(__nv_bfloat16* to, int stride) const {
    to[0] = high_;
    to[stride] = low_;
  }
  __device__ float sum() const { return widen(high_) + widen(low_); }

 private:
  __nv_bfloat16 high_, low_;
};

// Up to kHeads query heads that share a KV head, of rows of kGroups * 64 numbers.
template <int kHeads, int kGroups>
class Q4Split {
  using T = __nv_bfloat16;
  using Codes = GroupCodes<4, 64, T>;
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kGroupSize = 64;
  static constexpr int kHeadSize = kGroups * kGroupSize;
  static constexpr int kGroupBytes = Groups<4, kGroupSize>::kBytes;
  static constexpr int kRowBytes = kGroups * kGroupBytes;
  static constexpr int kBlock = static_cast<int>(kKvBlockRows);
  static constexpr int kRunBytes = kBlock * kRowBytes;
  static constexpr int kRows = static_cast<int>(kSplitRows);
  static constexpr int kChunk = 2 * kBlock;  // Rows of a warp at once: load_blocks() has as many.
  static constexpr int kTiles = (kHeads + kQ4HeadsOfTile - 1) / kQ4HeadsOfTile;
  static constexpr int kColumns = kTiles * 8;
  static constexpr int kSteps = kHeadSize / 16;
  static constexpr int kStepsOfGroup = kGroupSize / 16;
  // Rows of the factors in shared memory, padded against bank conflicts; multiples of 16 bytes.
  static constexpr int kQueryStride = kHeadSize + 8;
  static constexpr int kWeightStride = kRows + 8;
  static_assert(kRunBytes % 16 == 0 && kHeads <= kTiles * kQ4HeadsOfTile);

  static constexpr int most(int a, int b) { return a > b ? a : b; }
  static constexpr int kRunsBytes = kRows / kBlock * kRunBytes;
  // Keys; once these are used, the weights as factors.
  static constexpr int kKeysBytes =
      most(kRunsBytes, kGroups* kColumns* kWeightStride* static_cast<int>(sizeof(T)));
  // Values; once these are used, each warp's sums.
  static constexpr int kValuesBytes =
      most(kRunsBytes, kWarps* kHeads* kHeadSize* static_cast<int>(sizeof(float)));
  // Queries as factors; once these are in registers, scores and weights.
  static constexpr int kWeightsBytes = most(kHeads * kRows * static_cast<int>(sizeof(float)),
                                            kColumns* kQueryStride* static_cast<int>(sizeof(T)));
  static constexpr int kShared = kWarps * kHeads * kGroups;

 public:
  static constexpr size_t kSharedBytes =
      kKeysBytes + kValuesBytes + kWeightsBytes + kShared * sizeof(float);
  static_assert(kSharedBytes <= kSharedBytesMax);

  __device__ Q4Split(const AttentionOnDevice& a, const SplitRuns& runs, int rows, int heads)
      : a_(a), runs_(runs), rows_(rows), heads_(heads) {
    keys_ = dynamic_shared<std::byte>();
    values_ = keys_ + kKeysBytes;
    weights_ = reinterpret_cast<float*>(values_ + kValuesBytes);
    minima_ = reinterpret_cast<float*>(values_ + kValuesBytes + kWeightsBytes);
  }

  // attend_split(). Free again when the call returns.
  __device__ void attend(const ItemOnDevice& item, const Partials& partials, int64_t head,
                         int64_t first) {
    copy(keys_, 0);
    copy(values_, static_cast<unsigned>(a_.value_offset()));
    put_queries(a_.query(item.first_row, head));
    wait_for_copies<1>();
    __syncthreads();
    FactorColumns queries[kTiles][kSteps];
    load_queries(queries);
    __syncthreads();  // The scores lie where the queries were.
    scores(queries);
    __syncthreads();
    for (int h = static_cast<int>(threadIdx.x) / kWarp; h < heads_; h += kWarps) {
      float* kept = item.scored ? partials.row_scores(a_, blockIdx.x, head + h) + first : nullptr;
      softmax_split(weights_ + h * kRows, rows_, kept,
                    partials.split(a_, blockIdx.x, head + h, blockIdx.z));
    }
    wait_for_copies<0>();
    __syncthreads();
    put_weights();
    __syncwarp();  // Those of a warp's rows are its own.
    ProductSums sums[kTiles][kGroups][kStepsOfGroup];
    weigh(sums);
    __syncthreads();  // Each warp's sums lie where the values were.
    add_up(sums, partials, head);
    __syncthreads();
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  // Begins to copy the split's keys, or what is so much further.
  __device__ void copy(std::byte* to, unsigned offset) const {
    constexpr int kPieces = kRunBytes / 16;
    const int pieces = (rows_ + kBlock - 1) / kBlock * kPieces;
    for (int i = thread(); i < pieces; i += kThreads) {
      const auto within = static_cast<unsigned>(i % kPieces * 16);
      copy_ahead(to + i * 16, runs_[i / kPieces] + (offset + within), true);
    }
    end_of_copies();
  }

  // The heads' queries, scaled: a row for each column of the product.
  __device__ void put_queries(const float* queries) const {
    auto* to = reinterpret_cast<T*>(weights_);
    for (int i = thread(); i < heads_ * kHeadSize; i += kThreads) {
      const int h = i / kHeadSize, column = i % kHeadSize;
      TwoParts(queries[i] * a_.scale).put(to + 2 * h * kQueryStride + column, kQueryStride);
    }
  }

  // Whether the lane's column of a tile has no head: what lies there in shared memory is anything.
  __device__ bool no_head(int tile) const { return tile * 8 + fragment_group() >= 2 * heads_; }

  __device__ void load_queries(FactorColumns (&queries)[kTiles][kSteps]) const {
    const auto* from = reinterpret_cast<const T*>(weights_);
    SPILLWAY_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      SPILLWAY_UNROLL
      for (int step = 0; step < kSteps; step += 2) {
        uint32_t four[4];
        load_blocks(from + tile * 8 * kQueryStride + step * 16, kQueryStride, four);
        const bool none = no_head(tile);
        queries[tile][step] = {{none ? 0 : four[0], none ? 0 : four[1]}};
        queries[tile][step + 1] = {{none ? 0 : four[2], none ? 0 : four[3]}};
      }
    }
  }

  // The rows' scores, to weights_[head][row].
  __device__ void scores(const FactorColumns (&queries)[kTiles][kSteps]) const {
    ProductSums query_sums[kTiles][kGroups];
    SPILLWAY_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      SPILLWAY_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        constexpr uint32_t kOne = kOnes<T>;
        ProductSums& sum = query_sums[tile][step / kStepsOfGroup];
        if (step % kStepsOfGroup == 0) sum = {};
        multiply_add<T>(sum, {{kOne, kOne, kOne, kOne}}, queries[tile][step]);
      }
    }
    const int row = fragment_group(), head = fragment_pair() / 2;
    for (int first = thread() / kWarp * kBlock; first < rows_; first += kWarps * kBlock) {
      const std::byte* const rows = keys_ + (first + row) * kRowBytes;
      ProductSums dots[kTiles] = {};
      SPILLWAY_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        Codes codes[2];
        codes[0].load(rows + group * kGroupBytes);
        codes[1].load(rows + 8 * kRowBytes + group * kGroupBytes);
        ProductSums of_codes[kTiles] = {};
        SPILLWAY_UNROLL
        for (int step = 0; step < kStepsOfGroup; ++step) {
          const FactorRows factor{{codes[0].pair(2 * step), codes[1].pair(2 * step),
                                   codes[0].pair(2 * step + 1), codes[1].pair(2 * step + 1)}};
          SPILLWAY_UNROLL
          for (int tile = 0; tile < kTiles; ++tile) {
            multiply_add<T>(of_codes[tile], factor, queries[tile][group * kStepsOfGroup + step]);
          }
        }
        SPILLWAY_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          SPILLWAY_UNROLL
          for (int i = 0; i < 4; ++i) {
            float& dot = dots[tile].x[i];
            dot = fmaf(codes[i / 2].minimum(), query_sums[tile][group].x[i % 2], dot);
            dot = fmaf(codes[i / 2].scale(), of_codes[tile].x[i], dot);
          }
        }
      }
      SPILLWAY_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const int h = tile * kQ4HeadsOfTile + head;
        if (h >= heads_) continue;
        float* to = weights_ + h * kRows + first + row;
        if (first + row < rows_) to[0] = dots[tile].x[0] + dots[tile].x[1];
        if (first + row + 8 < rows_) to[8] = dots[tile].x[2] + dots[tile].x[3];
      }
    }
  }

  // The rows' weights, times the scales of their values, as factors where the keys were:
  // [group][column][row], zeros behind the last row; and each warp's sum of weights times minima.
  __device__ void put_weights() const {
    auto* to = reinterpret_cast<T*>(keys_);
    float sums[kHeads][kGroups] = {};
    const int end = (rows_ + kChunk - 1) / kChunk * kChunk;
    for (int row = thread(); row < end; row += kThreads) {
      SPILLWAY_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        float2 shared = make_float2(0.0f, 0.0f);
        if (row < rows_) {
          shared = __half22float2(
              *reinterpret_cast<const __half2*>(values_ + row * kRowBytes + group * kGroupBytes));
        }
        SPILLWAY_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          if (h >= heads_) continue;
          const float weight = row < rows_ ? weights_[h * kRows + row] : 0.0f;
          const TwoParts scaled(weight * shared.x);
          scaled.put(to + (group * kColumns + 2 * h) * kWeightStride + row, kWeightStride);
          // What is added to codes is taken off as it is multiplied, so that the parts' error is
          // the codes' alone.
          const float added = Codes::kAdded * scaled.sum();
          sums[h][group] += fmaf(weight, shared.y, -added);
        }
      }
    }
    SPILLWAY_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      SPILLWAY_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        const float sum = warp_sum(sums[h][group]);
        if (thread() % kWarp == 0) {
          minima_[(thread() / kWarp * kHeads + h) * kGroups + group] = sum;
        }
      }
    }
  }

  // The weighted codes of the values: rows of a product are columns of the values.
  __device__ void weigh(ProductSums (&sums)[kTiles][kGroups][kStepsOfGroup]) const {
    SPILLWAY_UNROLL
    for (auto& tile : sums) {
      SPILLWAY_UNROLL
      for (auto& group : tile) {
        SPILLWAY_UNROLL
        for (ProductSums& sum : group) sum = {};
      }
    }
    const auto* weights = reinterpret_cast<const T*>(keys_);
    for (int first = thread() / kWarp * kChunk; first < rows_; first += kWarps * kChunk) {
      SPILLWAY_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        FactorColumns factor[kTiles][2];
        SPILLWAY_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          uint32_t four[4];
          load_blocks(weights + (group * kColumns + tile * 8) * kWeightStride + first,
                      kWeightStride, four);
          const bool none = no_head(tile);
          factor[tile][0] = {{none ? 0 : four[0], none ? 0 : four[1]}};
          factor[tile][1] = {{none ? 0 : four[2], none ? 0 : four[3]}};
        }
        SPILLWAY_UNROLL
        for (int block = 0; block < 2; ++block) {
          // Word g of four rows: its eight codes are columns g, 8 + g, ... of the group. Behind the
          // last row they are anything, times zero.
          const std::byte* at = values_ + (first + block * kBlock + fragment_pair()) * kRowBytes +
                                group * kGroupBytes + 4 + fragment_group() * 4;
          uint32_t words[4];
          SPILLWAY_UNROLL
          for (int i = 0; i < 4; ++i) {
            words[i] = *reinterpret_cast<const uint32_t*>(at + (i / 2 * 8 + i % 2) * kRowBytes);
          }
          const TwoRowsCodes<T> near(words[0], words[1]), far(words[2], words[3]);
          SPILLWAY_UNROLL
          for (int step = 0; step < kStepsOfGroup; ++step) {
            const FactorRows codes{{near.pair(2 * step), near.pair(2 * step + 1),
                                    far.pair(2 * step), far.pair(2 * step + 1)}};
            SPILLWAY_UNROLL
            for (int tile = 0; tile < kTiles; ++tile) {
              multiply_add<T>(sums[tile][group][step], codes, factor[tile][block]);
            }
          }
        }
      }
    }
  }

  // All warps' sums, and what the groups' columns share, to the heads' parts of the result.
  __device__ void add_up(const ProductSums (&sums)[kTiles][kGroups][kStepsOfGroup],
                         const Partials& partials, int64_t head) const {
    auto* of_warps = reinterpret_cast<float*>(values_);  // [warp][head][column]
    const int of_tile = fragment_pair() / 2;
    SPILLWAY_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int h = tile * kQ4HeadsOfTile + of_tile;
      if (h >= heads_) continue;
      float* to = of_warps + (thread() / kWarp * kHeads + h) * kHeadSize + fragment_group();
      SPILLWAY_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        SPILLWAY_UNROLL
        for (int step = 0; step < kStepsOfGroup; ++step) {
          const float(&x)[4] = sums[tile][group][step].x;
          to[group * kGroupSize + step * 16] = x[0] + x[1];
          to[group * kGroupSize + step * 16 + 8] = x[2] + x[3];
        }
      }
    }
    __syncthreads();
    for (int i = thread(); i < heads_ * kHeadSize; i += kThreads) {
      const int h = i / kHeadSize, column = i % kHeadSize;
      float sum = 0;
      SPILLWAY_UNROLL
      for (int warp = 0; warp < kWarps; ++warp) {
        sum += of_warps[(warp * kHeads + h) * kHeadSize + column];
        sum += minima_[(warp * kHeads + h) * kGroups + column / kGroupSize];
      }
      partials.split(a_, blockIdx.x, head + h, blockIdx.z)[2 + column] = sum;
    }
  }

  const AttentionOnDevice& a_;
  const SplitRuns& runs_;
  int rows_, heads_;
  std::byte *keys_, *values_;
  float *weights_, *minima_;  // [head][row]; [warp][head][group]
};

}  // namespace spillway::cuda
