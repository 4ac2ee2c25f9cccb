// One decode step. Stores the new row, attends to every slot in use, adds the weights to the scores
// and drops one row (base/kv_budget.h). Plain float32 arithmetic, but for 4-bit rows
// (attention_decode_q4.cuh); keys and values are read once.
// The rows of a sequence are split over blocks, so that few long sequences use the whole device
// ("Flash-Decoding", Dao et al. 2023); a second kernel puts the parts together.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_decode_q4.cuh"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_split.cuh"
#include "kernels/cuda/cuda_context.h"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 128;
constexpr int kWideMax = 128;  // Largest head size of attend_wide()

__device__ void copy_row(const std::byte* from, std::byte* to, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

// What a kept position drew.
__device__ uint32_t drawn(const ItemOnDevice& item, const KvDraw& draw, int64_t position) {
  return position < item.first ? KvDraw::kProtected : draw.rank(position);
}

// The kept row with the lowest score, or that drew the lowest, of equal ones the earliest; every
// thread gets it.
__device__ int64_t lowest(const ItemOnDevice& item, const HeadStateOnDevice& state,
                          const KvDraw& draw, int64_t* scratch) {
  const auto before = [&](int64_t a, int64_t b) {
    if (item.random) {
      const uint32_t x = drawn(item, draw, state.positions[a]);
      const uint32_t y = drawn(item, draw, state.positions[b]);
      return x != y ? x < y : state.positions[a] < state.positions[b];
    }
    const float* scores = state.scores + item.ring();
    return scores[a] != scores[b] ? scores[a] < scores[b] : state.positions[a] < state.positions[b];
  };
  int64_t best = -1;
  for (int64_t i = threadIdx.x; i < item.kept; i += blockDim.x) {
    if (best < 0 || before(i, best)) best = i;
  }
  scratch[threadIdx.x] = best;
  __syncthreads();
  for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      const int64_t other = scratch[threadIdx.x + step];
      if (other >= 0 && (scratch[threadIdx.x] < 0 || before(other, scratch[threadIdx.x]))) {
        scratch[threadIdx.x] = other;
      }
    }
    __syncthreads();
  }
  return scratch[0];
}

// keep_step() of the CPU, on the device.
__device__ void keep_step(const AttentionOnDevice& a, const ItemOnDevice& item, int64_t kv_head,
                          const HeadStateOnDevice& state, int64_t* scratch) {
  if (item.kept == 0) return;
  const int64_t candidate = item.position - item.recent;  // It leaves the recent window.
  int64_t place = -1;
  if (candidate >= 0 && candidate < item.kept) place = candidate;
  if (candidate >= item.kept && item.by_score()) {
    const KvDraw draw = item.draw(kv_head);
    place = lowest(item, state, draw, scratch);
    const bool lower =
        item.random ? draw.rank(candidate) < drawn(item, draw, state.positions[place])
                    : state.scores[candidate % item.ring()] < state.scores[item.ring() + place];
    if (lower) place = -1;
    __syncthreads();  // All have read the scores.
  }
  const int64_t from = candidate % item.ring(), to = item.ring() + place;
  if (threadIdx.x == 0) {
    *state.moved = place < 0 ? -1 : static_cast<int32_t>(to);
    if (place >= 0) state.positions[place] = static_cast<int32_t>(candidate);
    if (place >= 0 && item.scored) {
      state.scores[to] = candidate < item.first ? INFINITY : state.scores[from];
    }
  }
  if (place < 0) return;
  copy_row(a.key_slot(item, kv_head, from), a.key_slot(item, kv_head, to), a.row_bytes);
  copy_row(a.value_slot(item, kv_head, from), a.value_slot(item, kv_head, to), a.row_bytes);
}

// The sums of kHeads numbers over kLanes neighbouring lanes: lane l of these gets that of head
// l / (kLanes / kHeads). The tree of additions is the same for any kHeads: in each step half of the
// lanes pass on half of the heads.
template <int kHeads, int kLanes>
__device__ float sum_of_heads(float (&dots)[kHeads]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  int step = kLanes / 2;
  SPILLWAY_UNROLL
  for (int left = kHeads / 2; left > 0; left /= 2) {
    const bool upper = (lane & step) != 0;
    SPILLWAY_UNROLL
    for (int h = 0; h < left; ++h) {
      const float passed = upper ? dots[h] : dots[h + left];
      const float own = upper ? dots[h + left] : dots[h];
      dots[h] = own + __shfl_xor_sync(0xffffffffu, passed, step);
    }
    step /= 2;
  }
  for (; step > 0; step /= 2) dots[0] += __shfl_xor_sync(0xffffffffu, dots[0], step);
  return dots[0];
}

// q . k of a cached row for kHeads query heads, the first of them `head`, by all lanes of a warp:
// lane l gets that of head l / (kWarp / kHeads).
template <int kHeads>
__device__ float dot_cached(const AttentionOnDevice& a, const ItemOnDevice& item, int64_t head,
                            const std::byte* k) {
  const int64_t lane = threadIdx.x % kWarp;
  const float* q = a.query(item.first_row, head);
  float dots[kHeads] = {};
  if (a.head_size % 4 == 0) {
    for (int64_t i = lane * 4; i < a.head_size; i += kWarp * 4) {
      float four[4];
      cached4(a, k, i, four);
      SPILLWAY_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        const float4 x = *reinterpret_cast<const float4*>(q + h * a.head_size + i);
        dots[h] += x.x * four[0];
        dots[h] += x.y * four[1];
        dots[h] += x.z * four[2];
        dots[h] += x.w * four[3];
      }
    }
  } else {
    for (int64_t i = lane; i < a.head_size; i += kWarp) {
      const float x = cached(a, k, i);
      SPILLWAY_UNROLL
      for (int h = 0; h < kHeads; ++h) dots[h] += q[h * a.head_size + i] * x;
    }
  }
  return sum_of_heads<kHeads, kWarp>(dots) * a.scale;
}

// kHeads of the query heads that share a KV head, from `head` on: their scores, softmax and
// weighted values of a split's rows, each row read once.
template <int kHeads>
__device__ void attend_split(const AttentionOnDevice& a, const ItemOnDevice& item,
                             const Partials& partials, const SplitRuns& runs, int64_t head,
                             int64_t first, int rows, float (*weights)[kSplitRows]) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned warps = blockDim.x / kWarp;
  constexpr unsigned kLanesPerHead = kWarp / kHeads;
  for (int row = static_cast<int>(warp); row < rows; row += static_cast<int>(warps)) {
    const float dot = dot_cached<kHeads>(a, item, head, key_in(a, runs, row));
    if (lane % kLanesPerHead == 0) weights[lane / kLanesPerHead][row] = dot;
  }
  __syncthreads();
  for (unsigned h = warp; h < kHeads; h += warps) {
    float* scores = item.scored ? partials.row_scores(a, blockIdx.x, head + h) + first : nullptr;
    softmax_split(weights[h], rows, scores, partials.split(a, blockIdx.x, head + h, blockIdx.z));
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < a.head_size; i += blockDim.x) {
    float values[kHeads] = {};
    for (int row = 0; row < rows; ++row) {
      const float x = cached(a, key_in(a, runs, row) + a.value_offset(), i);
      SPILLWAY_UNROLL
      for (int h = 0; h < kHeads; ++h) values[h] += weights[h][row] * x;
    }
    for (int h = 0; h < kHeads; ++h) {
      partials.split(a, blockIdx.x, head + h, blockIdx.z)[2 + i] = values[h];
    }
  }
  __syncthreads();  // The weights are free for the next heads.
}

// Rows of 16-bit numbers and usual head sizes: kLanes lanes read a row, each the same eight of its
// columns (16 bytes) in every row, and several rows are under way before the first is used.
// `weights` as in attend_split(); `sums` are [warps][kLanes * kColumns].
template <class T, int kHeads, int kLanes>
struct WideRows {
  static constexpr int kColumns = 8;
  static constexpr int kHeadSize = kLanes * kColumns;
  static constexpr int kRows = kWarp / kLanes;          // Of a warp at once
  static constexpr int kUnderWay = kHeads > 4 ? 2 : 4;  // Times these
  static constexpr int kWarps = static_cast<int>(kThreads) / kWarp;

  struct alignas(16) Part {
    T x[kColumns];
  };

  const AttentionOnDevice& a;
  const SplitRuns& runs;
  int rows;
  unsigned offset = 0;  // From a key to what is read: the key, or its value

  // The columns of this lane in a row of the split; zeros after the last.
  __device__ Part part(int row) const {
    Part found{};
    if (row < rows) {
      constexpr auto kBlock = static_cast<unsigned>(kKvBlockRows);
      const auto at = static_cast<unsigned>(row);
      const unsigned within = at % kBlock * static_cast<unsigned>(a.row_bytes);
      const unsigned column = threadIdx.x % kLanes * kColumns * sizeof(T);
      found = *reinterpret_cast<const Part*>(runs[at / kBlock] + (offset + column + within));
    }
    return found;
  }
  // The first row of this lane, of those that it reads every kWarps * kRows rows.
  __device__ static int first_row() {
    return static_cast<int>(threadIdx.x) / kWarp * kRows +
           static_cast<int>(threadIdx.x) % kWarp / kLanes;
  }

  // Scores of the split's rows for the heads that have these queries.
  __device__ void scores(const float* queries, float (*weights)[kSplitRows]) const {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    float q[kHeads][kColumns];
    SPILLWAY_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      SPILLWAY_UNROLL
      for (int i = 0; i < kColumns; i += 4) {
        const auto& four =
            *reinterpret_cast<const float4*>(queries + h * kHeadSize + lane * kColumns + i);
        q[h][i] = four.x * a.scale, q[h][i + 1] = four.y * a.scale;
        q[h][i + 2] = four.z * a.scale, q[h][i + 3] = four.w * a.scale;
      }
    }
    // All lanes of a warp make as many steps, for they add up together.
    for (int row = first_row(), of_warp = row / kRows * kRows; of_warp < rows;
         row += kWarps * kRows * kUnderWay, of_warp += kWarps * kRows * kUnderWay) {
      Part keys[kUnderWay];
      SPILLWAY_UNROLL
      for (int i = 0; i < kUnderWay; ++i) keys[i] = part(row + i * kWarps * kRows);
      SPILLWAY_UNROLL
      for (int i = 0; i < kUnderWay; ++i) {
        float dots[kHeads] = {};
        SPILLWAY_UNROLL
        for (int c = 0; c < kColumns; ++c) {
          const float x = widen(keys[i].x[c]);
          SPILLWAY_UNROLL
          for (int h = 0; h < kHeads; ++h) dots[h] += q[h][c] * x;
        }
        const float dot = sum_of_heads<kHeads, kLanes>(dots);
        const int at = row + i * kWarps * kRows;
        constexpr int kLanesPerHead = kLanes / kHeads;
        if (lane % kLanesPerHead == 0 && at < rows) weights[lane / kLanesPerHead][at] = dot;
      }
    }
  }

  // The split's values, weighted, to the heads' parts of the result.
  __device__ void values(const Partials& partials, int64_t head, float (*weights)[kSplitRows],
                         float* sums) const {
    float added[kHeads][kColumns] = {};
    for (int row = first_row(); row < rows; row += kWarps * kRows * kUnderWay) {
      Part read[kUnderWay];
      SPILLWAY_UNROLL
      for (int i = 0; i < kUnderWay; ++i) read[i] = part(row + i * kWarps * kRows);
      SPILLWAY_UNROLL
      for (int i = 0; i < kUnderWay; ++i) {
        const int at = row + i * kWarps * kRows;
        SPILLWAY_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          const float weight = at < rows ? weights[h][at] : 0.0f;
          SPILLWAY_UNROLL
          for (int c = 0; c < kColumns; ++c) added[h][c] += weight * widen(read[i].x[c]);
        }
      }
    }
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    SPILLWAY_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      SPILLWAY_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        float sum = added[h][c];
        SPILLWAY_UNROLL
        for (int step = kLanes; step < kWarp; step *= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, step);
        }
        if (lane < kLanes) sums[warp * kHeadSize + lane * kColumns + c] = sum;
      }
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kHeadSize; i += static_cast<int>(kThreads)) {
        float sum = 0;
        for (int w = 0; w < kWarps; ++w) sum += sums[w * kHeadSize + i];
        partials.split(a, blockIdx.x, head + h, blockIdx.z)[2 + i] = sum;
      }
      __syncthreads();
    }
  }
};

// attend_split() for rows of T, kLanes * 8 of them.
template <class T, int kHeads, int kLanes>
__device__ void attend_wide(const AttentionOnDevice& a, const ItemOnDevice& item,
                            const Partials& partials, const SplitRuns& runs, int64_t head,
                            int64_t first, int rows, float (*weights)[kSplitRows], float* sums) {
  WideRows<T, kHeads, kLanes> wide{a, runs, rows};
  wide.scores(a.query(item.first_row, head), weights);
  __syncthreads();
  for (unsigned h = threadIdx.x / kWarp; h < kHeads; h += blockDim.x / kWarp) {
    float* scores = item.scored ? partials.row_scores(a, blockIdx.x, head + h) + first : nullptr;
    softmax_split(weights[h], rows, scores, partials.split(a, blockIdx.x, head + h, blockIdx.z));
  }
  __syncthreads();
  wide.offset = static_cast<unsigned>(a.value_offset());
  wide.values(partials, head, weights, sums);
}

// Rows in any format and of any head size: attend_split().
struct AnyRows {};
// Rows of kLanes * 8 numbers of T: attend_wide().
template <class T, int kLanes>
struct Wide {};

template <int kHeads>
__device__ void attend(AnyRows, const AttentionOnDevice& a, const ItemOnDevice& item,
                       const Partials& partials, const SplitRuns& runs, int64_t head, int64_t first,
                       int rows, float (*weights)[kSplitRows], float*) {
  attend_split<kHeads>(a, item, partials, runs, head, first, rows, weights);
}
template <int kHeads, class T, int kLanes>
__device__ void attend(Wide<T, kLanes>, const AttentionOnDevice& a, const ItemOnDevice& item,
                       const Partials& partials, const SplitRuns& runs, int64_t head, int64_t first,
                       int rows, float (*weights)[kSplitRows], float* sums) {
  attend_wide<T, kHeads, kLanes>(a, item, partials, runs, head, first, rows, weights, sums);
}

// The rows of a block of threads: of one sequence and KV head, a split.
struct SplitOfBlock {
  ItemOnDevice item;
  int64_t kv_head, first;
  int rows;  // 0: none
};

// Finds them, and stores the new row where it is one of them. All threads call it.
__device__ SplitOfBlock begin_split(const AttentionOnDevice& a, SplitRuns& runs) {
  SplitOfBlock split{a.item(blockIdx.x), blockIdx.y, blockIdx.z * kSplitRows, 0};
  const ItemOnDevice& item = split.item;
  const int64_t kv_head = split.kv_head, first = split.first;
  if (first >= item.rows) return split;
  split.rows = static_cast<int>(item.rows - first < kSplitRows ? item.rows - first : kSplitRows);
  if (threadIdx.x < (split.rows + kKvBlockRows - 1) / kKvBlockRows) {
    runs[threadIdx.x] = a.key_slot(item, kv_head, first + threadIdx.x * kKvBlockRows);
  }
  const unsigned warp = threadIdx.x / kWarp;
  if (item.slot >= first && item.slot < first + split.rows) {
    if (warp == 0) {
      store_cached(a, a.key(item.first_row, kv_head), a.key_slot(item, kv_head, item.slot));
    }
    if (warp == 1) {
      store_cached(a, a.value(item.first_row, kv_head), a.value_slot(item, kv_head, item.slot));
    }
  }
  __syncthreads();
  return split;
}

// One block per sequence, KV head and split of its rows. kHeads of the heads that share the rows
// are computed together, the rest by ones.
template <int kHeads, class Rows>
__global__ void __launch_bounds__(kThreads)
    split_kernel(const __grid_constant__ AttentionOnDevice a, Partials partials) {
  __shared__ float weights[kHeads][kSplitRows];
  __shared__ float sums[kThreads / kWarp * kWideMax];
  __shared__ SplitRuns runs;
  const SplitOfBlock split = begin_split(a, runs);
  if (split.rows == 0) return;  // The whole block
  int64_t head = split.kv_head * a.group();
  const int64_t end = head + a.group();
  for (; head + kHeads <= end; head += kHeads) {
    attend<kHeads>(Rows{}, a, split.item, partials, runs, head, split.first, split.rows, weights,
                   sums);
  }
  if constexpr (kHeads > 1) {
    for (; head < end; ++head) {
      attend<1>(Rows{}, a, split.item, partials, runs, head, split.first, split.rows, weights,
                sums);
    }
  }
}

// The same over 4-bit rows of kGroups * 64 numbers; the last heads are fewer. Only for devices with
// products of bf16 (split_kernel_of()).
template <int kHeads, int kGroups>
__global__ void __launch_bounds__(kThreads)
    q4_split_kernel(const __grid_constant__ AttentionOnDevice a, Partials partials) {
#if defined(SPILLWAY_CUDA_EMULATED) || __CUDA_ARCH__ >= 800
  __shared__ SplitRuns runs;
  const SplitOfBlock split = begin_split(a, runs);
  if (split.rows == 0) return;
  const int64_t first_head = split.kv_head * a.group(), end = first_head + a.group();
  for (int64_t head = first_head; head < end; head += kHeads) {
    const auto heads = static_cast<int>(end - head < kHeads ? end - head : kHeads);
    Q4Split<kHeads, kGroups>(a, runs, split.rows, heads)
        .attend(split.item, partials, head, split.first);
  }
#endif
}

using SplitKernel = void (*)(AttentionOnDevice, Partials);
struct SplitLaunch {
  SplitKernel kernel;
  size_t shared_bytes = 0;  // Dynamic
};

// split_kernel for as many heads together as share a KV head, up to eight, without a rest for the
// usual numbers.
template <class Rows>
SplitLaunch split_kernel_for(int64_t group) {
  if (group % 8 == 0) return {&split_kernel<8, Rows>};
  if (group % 4 == 0 || group > 4) return {&split_kernel<4, Rows>};
  if (group > 1) return {&split_kernel<2, Rows>};
  return {&split_kernel<1, Rows>};
}

template <int kHeads, int kGroups>
SplitLaunch q4_split_kernel_of() {
  return {&q4_split_kernel<kHeads, kGroups>, Q4Split<kHeads, kGroups>::kSharedBytes};
}
template <int kGroups>
SplitLaunch q4_split_kernel_for(int64_t group) {
  if (group == 1) return q4_split_kernel_of<1, kGroups>();
  if (group <= kQ4HeadsOfTile) return q4_split_kernel_of<kQ4HeadsOfTile, kGroups>();
  return q4_split_kernel_of<2 * kQ4HeadsOfTile, kGroups>();
}

template <class T>
SplitLaunch split_kernel_of(int64_t group, int64_t head_size) {
  if (head_size == 64) return split_kernel_for<Wide<T, 8>>(group);
  if (head_size == 128) return split_kernel_for<Wide<T, 16>>(group);
  return split_kernel_for<AnyRows>(group);
}

SplitLaunch split_kernel_of(const AttentionOnDevice& a, bool native_bf16) {
  const int64_t group = a.heads / a.kv_heads;
  if (a.kv_format == Format::kF16) return split_kernel_of<__half>(group, a.head_size);
  if (a.kv_format == Format::kBF16) return split_kernel_of<__nv_bfloat16>(group, a.head_size);
  if (a.kv_format == Format::kQ4 && native_bf16) {
    if (a.head_size == 64) return q4_split_kernel_for<1>(group);
    if (a.head_size == 128) return q4_split_kernel_for<2>(group);
  }
  return split_kernel_for<AnyRows>(group);
}

// One block per sequence and KV head: adds up the splits, adds to the rows' scores, and drops one
// row.
__global__ void combine_kernel(const __grid_constant__ AttentionOnDevice a, Partials partials) {
  __shared__ int64_t places[kThreads];
  const ItemOnDevice item = a.item(blockIdx.x);
  const int64_t kv_head = blockIdx.y, splits = (item.rows + kSplitRows - 1) / kSplitRows;
  const HeadStateOnDevice state = head_state(item, kv_head);
  if (item.scored && threadIdx.x == 0) state.scores[item.slot] = 0;
  __syncthreads();
  for (int64_t head = kv_head * a.group(); head < (kv_head + 1) * a.group(); ++head) {
    float most = -INFINITY, sum = 0;
    for (int64_t split = 0; split < splits; ++split) {
      most = fmaxf(most, partials.split(a, blockIdx.x, head, split)[0]);
    }
    for (int64_t split = 0; split < splits; ++split) {
      const float* part = partials.split(a, blockIdx.x, head, split);
      sum += part[1] * expf(part[0] - most);
    }
    for (int64_t i = threadIdx.x; i < a.head_size; i += blockDim.x) {
      float out = 0;
      for (int64_t split = 0; split < splits; ++split) {
        const float* part = partials.split(a, blockIdx.x, head, split);
        out += part[2 + i] * expf(part[0] - most);
      }
      a.store_out(item.first_row, head, i, out / sum);
    }
    if (!item.scored) continue;
    // A thread's rows are its own in every head.
    const float* scores = partials.row_scores(a, blockIdx.x, head);
    for (int64_t row = threadIdx.x; row < item.rows; row += blockDim.x) {
      state.scores[row] += expf(scores[row] - most) / sum;
    }
  }
  __syncthreads();
  keep_step(a, item, kv_head, state, places);
}

}  // namespace

void launch_decode(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                   int64_t rows_max, bool scored, int64_t scratch_bytes) {
  constexpr int64_t kItemsMax = 65535;
  Partials partials{};
  partials.split_count = (rows_max + kSplitRows - 1) / kSplitRows;
  partials.rows = rows_max;
  SPILLWAY_CHECK(partials.split_count < 65536);
  const int64_t splits = a.heads * partials.split_count * (2 + a.head_size);
  const int64_t scores = scored ? a.heads * rows_max : 0;
  const int64_t item_bytes = (splits + scores) * static_cast<int64_t>(sizeof(float));
  const int64_t most = std::clamp<int64_t>(scratch_bytes / item_bytes, 1, kItemsMax);
  const int64_t each = std::min(most, items);
  auto* scratch = reinterpret_cast<float*>(context.scratch(static_cast<size_t>(each * item_bytes)));
  if (scratch == nullptr) return;  // The context has the reason.
  partials.splits = scratch;
  if (scored) partials.scores = scratch + each * splits;
  const SplitLaunch split = split_kernel_of(a, context.native_bf16());
  for (int64_t first = 0; first < items; first += each) {
    AttentionOnDevice part = a;
    part.skip_items(first);
    const auto count = static_cast<unsigned>(std::min(each, items - first));
    const auto heads = static_cast<unsigned>(a.kv_heads);
    launch(context.stream(),
           {dim3(count, heads, static_cast<unsigned>(partials.split_count)), dim3(kThreads),
            split.shared_bytes},
           split.kernel, part, partials);
    launch(context.stream(), {dim3(count, heads), dim3(kThreads)}, combine_kernel, part, partials);
  }
  context.check_launch("decode attention");
}

}  // namespace spillway::cuda
