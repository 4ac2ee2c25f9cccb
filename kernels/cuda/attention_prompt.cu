// Prompts, whole or in chunks: their rows are stored where they are read (ItemOnDevice::source),
// then attention in tiles of keys with a running maximum and sum (Dao et al. 2022), the column sums
// of its softmax in a second pass over the statistics of the first, and after the last row the
// choice of the rows to keep. Plain float32 arithmetic, one warp per query row; attention_tiles.cu
// does the second and third step on tensor cores where it can.
#include "kernels/base/check.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"

namespace spillway::cuda {

namespace {

constexpr int kWarps = 4;  // Queries per block
constexpr unsigned kThreads = kWarps * kWarp;
constexpr int64_t kTile = kWarp;  // Keys per tile, one per lane
constexpr int kColumnsMax = 8;    // Columns per lane
static_assert(kColumnsMax * kWarp == kHeadSizeMax);

// A tile's keys or values in shared memory, rows of head_size + 1: lanes that read one column each
// of neighbouring rows then meet no bank twice.
__device__ void load_tile(const AttentionOnDevice& a, const ItemOnDevice& item, int64_t kv_head,
                          int64_t first, bool values, float* tile) {
  for (int64_t i = threadIdx.x; i < kTile * a.head_size; i += blockDim.x) {
    const int64_t row = i / a.head_size, column = i % a.head_size;
    float x = 0;
    if (first + row < item.keys()) {
      const std::byte* at = a.slot_in(item.source(), kv_head, item.source_slot(first + row));
      x = cached(a, values ? at + a.value_offset() : at, column);
    }
    tile[row * (a.head_size + 1) + column] = x;
  }
}

// q . k of this lane's key. `q` in shared memory, scaled.
__device__ float dot_key(const AttentionOnDevice& a, const float* q, const float* tile) {
  const float* k = tile + threadIdx.x % kWarp * (a.head_size + 1);
  float dot = 0;
  for (int64_t i = 0; i < a.head_size; ++i) dot += q[i] * k[i];
  return dot;
}

__device__ void load_query(const AttentionOnDevice& a, const ItemOnDevice& item,
                           const QueryRow& row, float* q) {
  for (int64_t i = threadIdx.x % kWarp; i < a.head_size; i += kWarp) {
    const bool there = row.token < item.tokens;
    q[i] = there ? a.query(item.first_row + row.token, row.head)[i] * a.scale : 0.0f;
  }
}

// Shared memory of both kernels: a tile, and one query per warp.
constexpr size_t shared_bytes(int64_t head_size) {
  const auto columns = static_cast<size_t>(head_size);
  return (kTile * (columns + 1) + kWarps * columns) * sizeof(float);
}
static_assert(shared_bytes(kHeadSizeMax) + kWarps * kWarp * sizeof(float) <= kSharedBytesMax);

// Keys and values take turns in the tile.
__global__ void prompt_kernel(const __grid_constant__ AttentionOnDevice a) {
  const ItemOnDevice item = a.item(blockIdx.z);
  const int64_t kv_head = blockIdx.y, first = static_cast<int64_t>(blockIdx.x) * kWarps;
  if (first >= item.tokens * a.group()) return;  // The whole block
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const QueryRow row = query_row(a, item, kv_head, first + warp);
  auto* shared = dynamic_shared<float>();
  float* q = shared + kTile * (a.head_size + 1) + warp * a.head_size;
  load_query(a, item, row, q);
  float most = -INFINITY, sum = 0, out[kColumnsMax] = {};
  const int64_t first_key = first_seen(a, query_row(a, item, kv_head, first).position);
  const int64_t last_row = query_row(a, item, kv_head, first + kWarps - 1).position;
  const int64_t last = last_row + 1 < item.keys() ? last_row + 1 : item.keys();
  for (int64_t tile = first_key / kTile * kTile; tile < last; tile += kTile) {
    __syncthreads();  // The tile before has been used.
    load_tile(a, item, kv_head, tile, false, shared);
    __syncthreads();
    const int64_t key = tile + lane;
    const bool seen =
        key <= row.position && key >= first_seen(a, row.position) && key < item.keys();
    const float score = seen ? dot_key(a, q, shared) : -INFINITY;
    __syncthreads();  // All have used the keys.
    load_tile(a, item, kv_head, tile, true, shared);
    __syncthreads();
    const float next = fmaxf(most, warp_max(score));
    const float weight = seen ? expf(score - next) : 0.0f;
    // Equal ones may be -infinity, of a row that has seen no key yet.
    const float old = most == next ? 1.0f : expf(most - next);
    sum = sum * old + warp_sum(weight);
    most = next;
    for (int i = 0; i < kColumnsMax; ++i) out[i] *= old;
    for (int from = 0; from < kTile; ++from) {
      const float w = __shfl_sync(0xffffffffu, weight, from);
      for (int i = 0; i < kColumnsMax; ++i) {
        const int64_t column = lane + i * kWarp;
        if (column < a.head_size) out[i] += w * shared[from * (a.head_size + 1) + column];
      }
    }
  }
  if (row.token >= item.tokens) return;
  for (int i = 0; i < kColumnsMax; ++i) {
    const int64_t column = lane + i * kWarp;
    if (column < a.head_size) {
      a.store_out(item.first_row + row.token, row.head, column, out[i] / sum);
    }
  }
  if (item.sums != nullptr && lane == 0) {
    float* statistics = a.statistics_of(item.first_row + row.token, row.head);
    statistics[0] = most;
    statistics[1] = sum;
  }
}

// sums[key] += the weights that all query rows give the key; a key that is new has no sum before.
// One block per tile of keys; its warps take the rows in turn.
__global__ void column_sums_kernel(const __grid_constant__ AttentionOnDevice a) {
  const ItemOnDevice item = a.item(blockIdx.z);
  const int64_t kv_head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  if (item.sums == nullptr || first >= item.keys()) return;  // The whole block
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t key = first + lane;
  auto* keys = dynamic_shared<float>();
  float* q = keys + kTile * (a.head_size + 1) + warp * a.head_size;
  __shared__ float partial[kWarps][kWarp];
  load_tile(a, item, kv_head, first, false, keys);
  __syncthreads();
  float sum = 0;
  const RowRange rows = scored_rows(a, item, first, first + kTile);
  for (int64_t i = rows.first + warp; i < rows.end; i += kWarps) {
    const QueryRow row = query_row(a, item, kv_head, i);
    __syncwarp();  // The query before has been used.
    load_query(a, item, row, q);
    __syncwarp();
    if (key > row.position || key < first_seen(a, row.position)) continue;
    const float* statistics = a.statistics_of(item.first_row + row.token, row.head);
    sum = with_weight(item, sum, expf(dot_key(a, q, keys) - statistics[0]) / statistics[1]);
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || key >= item.keys()) return;
  // Added in a fixed order: the same sums in every run.
  float total = 0;
  for (int i = 0; i < kWarps; ++i) total = with_weight(item, total, partial[i][lane]);
  float* at = item.sums_of(kv_head) + key;
  *at = key < item.position ? with_weight(item, *at, total) : total;
}

// The sums that a prompt behind a beginning begins with.
__global__ void first_sums_kernel(const __grid_constant__ FirstSums sums) {
  const int64_t key = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (key >= sums.count) return;
  const int64_t kv_head = blockIdx.y;
  sums.to[kv_head * sums.to_stride + key] =
      sums.from == nullptr ? 0.0f : sums.from[kv_head * sums.from_stride + key];
}

// Positions of the prompt before its last ones, which stay in any case; and the number of them that
// are chosen to stay.
__device__ int64_t before_recent(const ItemOnDevice& item) {
  return item.keys() > item.recent ? item.keys() - item.recent : 0;
}
__device__ int64_t kept_of(const ItemOnDevice& item) {
  const int64_t old = before_recent(item);
  return item.kept < old ? item.kept : old;
}

// A NaN score is the lowest.
__device__ float number(float score) {
  return score == score ? score : -1.0f;
}

// Whether position `a` is kept rather than `b`, by scores or as drawn.
__device__ bool outranks(const float* sums, int64_t a, int64_t b) {
  const float x = number(sums[a]), y = number(sums[b]);
  return x != y ? x > y : a > b;
}
__device__ bool outranks(const KvDraw& draw, int64_t a, int64_t b) {
  const uint32_t x = draw.rank(a), y = draw.rank(b);
  return x != y ? x > y : a > b;
}

// How many of the positions [first, end) are kept rather than `position`.
template <class Scores>
__device__ int64_t outranking(const Scores& scores, int64_t first, int64_t end, int64_t position) {
  int64_t found = 0;
  for (int64_t other = first; other < end; ++other) {
    found += outranks(scores, other, position) ? 1 : 0;
  }
  return found;
}

// Makes snap's scores of a prompt's sums (kernels/ops.h). One block per sequence and KV head.
__global__ void snap_kernel(const __grid_constant__ AttentionOnDevice a) {
  const ItemOnDevice item = a.item(blockIdx.x);
  if (!item.snaps) return;  // The whole block
  float* sums = item.sums_of(blockIdx.y);
  const int64_t end = item.scored_from;
  const auto sum_at = [&](int64_t position) {
    return position >= 0 && position < end ? sums[position] : 0.0f;
  };
  __shared__ float part[kThreads + 4];  // Sums of positions from first - 2 on
  if (threadIdx.x < 4) part[threadIdx.x] = sum_at(static_cast<int64_t>(threadIdx.x) - 2);
  float total = 0;
  for (int64_t first = 0; first < end; first += kThreads) {
    const int64_t position = first + threadIdx.x;
    part[threadIdx.x + 4] = sum_at(position + 2);
    __syncthreads();  // The part is whole, and nobody reads its sums any more.
    float smoothed = 0;
    for (unsigned i = 0; i < 5; ++i) smoothed += part[threadIdx.x + i];
    smoothed /= 5;
    if (position < end) {
      sums[position] = smoothed;
      total += smoothed;
    }
    const float next = threadIdx.x < 4 ? part[kThreads + threadIdx.x] : 0.0f;
    __syncthreads();  // The part has been used.
    if (threadIdx.x < 4) part[threadIdx.x] = next;
  }
  if (!item.highest) return;
  __shared__ float totals[kWarps];
  total = warp_sum(total);
  if (threadIdx.x % kWarp == 0) totals[threadIdx.x / kWarp] = total;
  __syncthreads();
  float mean = 0;
  for (const float one : totals) mean += one;
  mean /= static_cast<float>(end > 0 ? end : 1);
  // A thread's positions are its own in both loops.
  const auto weights = static_cast<float>((item.keys() - end) * a.group());
  for (int64_t position = threadIdx.x; position < item.keys(); position += kThreads) {
    const float score = position < end ? fmaxf(sums[position], mean) : sums[position];
    sums[position] = score * weights;
  }
}

// Chooses the positions that a budget keeps of a prompt beside its last ones, as keep_prompt() of
// the CPU. One block per sequence and KV head.
__global__ void choose_kernel(const __grid_constant__ AttentionOnDevice a) {
  const ItemOnDevice item = a.item(blockIdx.x);
  const int64_t kv_head = blockIdx.y;
  if (item.kept == 0) return;  // The whole block
  const HeadStateOnDevice state = head_state(item, kv_head);
  const int64_t old = before_recent(item), count = kept_of(item);
  const float* sums = item.scored ? item.sums_of(kv_head) : nullptr;
  // Of snap's window of queries, what lies before the recent positions stays before any other but
  // the first ones, of these the latest.
  int64_t end = old, window = 0;
  if (item.snaps && item.scored_from < old) {
    end = item.scored_from > item.first ? item.scored_from : item.first;
    if (end > old) end = old;
    window = old - end < count - item.first ? old - end : count - item.first;
  }
  // A position's rank by score says whether it stays, the number of those that stay before it gives
  // its slot: quadratic, but little beside the attention before it.
  __shared__ int64_t stays;
  if (threadIdx.x == 0) stays = 0;
  for (int64_t first = 0; first < old; first += blockDim.x) {
    const int64_t position = first + threadIdx.x;
    bool keep = position < old;
    if (keep && !item.by_score()) keep = position < count;
    if (keep && item.by_score() && count < old && position >= end) keep = position >= old - window;
    if (keep && item.by_score() && count < old && position >= item.first && position < end) {
      const int64_t better = item.random ? outranking(item.draw(kv_head), item.first, end, position)
                                         : outranking(sums, item.first, end, position);
      keep = item.first + better < count - window;  // The first ones stay in any case.
    }
    const unsigned kept = __ballot_sync(0xffffffffu, keep);
    __shared__ int64_t before[kWarps + 1];
    if (threadIdx.x % kWarp == 0) before[threadIdx.x / kWarp] = __popc(kept);
    __syncthreads();
    int64_t place = stays + __popc(kept & ((1u << threadIdx.x % kWarp) - 1));
    for (unsigned warp = 0; warp < threadIdx.x / kWarp; ++warp) place += before[warp];
    if (keep) {
      state.positions[place] = static_cast<int32_t>(position);
      if (item.scored) {
        state.scores[item.ring() + place] = position < item.first ? INFINITY : sums[position];
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int warp = 0; warp < kWarps; ++warp) stays += before[warp];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *state.moved = -1;
  if (!item.scored) return;
  for (int64_t token = old + threadIdx.x; token < item.keys(); token += blockDim.x) {
    state.scores[token % item.ring()] = sums[token];
  }
}

// Rows of keys and values that one block stores, one per warp in turn.
constexpr int64_t kStoreRows = 16;

// Stores the new rows of a prompt or a draft where they are read. One block per kStoreRows rows of
// a sequence and KV head.
__global__ void store_rows_kernel(const __grid_constant__ AttentionOnDevice a) {
  const ItemOnDevice item = a.item(blockIdx.x);
  const int64_t kv_head = blockIdx.y, first = blockIdx.z * kStoreRows;
  const int64_t last = first + kStoreRows < item.tokens ? first + kStoreRows : item.tokens;
  for (int64_t token = first + threadIdx.x / kWarp; token < last; token += kWarps) {
    std::byte* at = a.slot_in(item.source(), kv_head, item.source_slot(item.position + token));
    store_cached(a, a.key(item.first_row + token, kv_head), at);
    store_cached(a, a.value(item.first_row + token, kv_head), at + a.value_offset());
  }
}

// Puts the rows that stay of a prompt, its last ones and the chosen ones, into their slots: of the
// cache, or of scratch where they are read from the cache itself (kept_in()). `back`: brings them
// from there into the same slots of the cache. One block per kStoreRows rows of a sequence and KV
// head.
__global__ void move_kept_kernel(const __grid_constant__ AttentionOnDevice a, bool back) {
  const ItemOnDevice item = a.item(blockIdx.x);
  if (back && !item.keeps_in_scratch()) return;  // The whole block
  const int64_t kv_head = blockIdx.y, first = blockIdx.z * kStoreRows;
  const int64_t old = before_recent(item), recent = item.keys() - old;
  const int64_t rows = recent + kept_of(item);
  const int64_t last = first + kStoreRows < rows ? first + kStoreRows : rows;
  const unsigned lane = threadIdx.x % kWarp;
  for (int64_t row = first + threadIdx.x / kWarp; row < last; row += kWarps) {
    int64_t token = item.source_slot(old + row), slot = (old + row) % item.ring();
    if (row >= recent) {
      token = head_state(item, kv_head).positions[row - recent];
      slot = item.ring() + row - recent;
    }
    const std::byte* from =
        back ? a.slot_in(item.scratch, kv_head, slot) : a.slot_in(item.source(), kv_head, token);
    std::byte* to = a.slot_in(back ? item.kv : item.kept_in(), kv_head, slot);
    for (int64_t i = lane; i < a.row_bytes; i += kWarp) {
      to[i] = from[i];
      to[i + a.value_offset()] = from[i + a.value_offset()];
    }
  }
}

unsigned blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

void launch_store(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                  int64_t tokens_max) {
  SPILLWAY_CHECK(items < 65536 && tokens_max / kStoreRows < 65535);
  const auto z = static_cast<unsigned>(items), heads = static_cast<unsigned>(a.kv_heads);
  launch(context.stream(), {dim3(z, heads, blocks(tokens_max, kStoreRows)), dim3(kThreads)},
         store_rows_kernel, a);
  context.check_launch("storing rows");
}

void launch_prompts(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                    int64_t tokens_max, int64_t keys_max) {
  SPILLWAY_CHECK(a.head_size <= kHeadSizeMax && items < 65536);
  const auto z = static_cast<unsigned>(items), heads = static_cast<unsigned>(a.kv_heads);
  launch_store(context, a, items, tokens_max);
  const size_t shared = shared_bytes(a.head_size);
  const auto plain = [&] {
    const int64_t rows = tokens_max * (a.heads / a.kv_heads);
    launch(context.stream(), {dim3(blocks(rows, kWarps), heads, z), dim3(kThreads), shared},
           prompt_kernel, a);
    if (a.statistics == nullptr) return;
    launch(context.stream(), {dim3(blocks(keys_max, kTile), heads, z), dim3(kThreads), shared},
           column_sums_kernel, a);
  };
  if (can_tile(a)) {
    launch_prompt_tiles(context, a, items, tokens_max, keys_max);
  } else {
    plain();
  }
  context.check_launch("prompt attention");
}

void launch_first_sums(CudaContext& context, const FirstSums& sums, int64_t kv_heads) {
  launch(context.stream(),
         {dim3(blocks(sums.count, kThreads), static_cast<unsigned>(kv_heads)), dim3(kThreads)},
         first_sums_kernel, sums);
  context.check_launch("scores of prompts' beginnings");
}

void launch_snap(CudaContext& context, const AttentionOnDevice& a, int64_t items) {
  const auto z = static_cast<unsigned>(items), heads = static_cast<unsigned>(a.kv_heads);
  launch(context.stream(), {dim3(z, heads), dim3(kThreads)}, snap_kernel, a);
  context.check_launch("scores of prompts' last queries");
}

void launch_keep(CudaContext& context, const AttentionOnDevice& a, int64_t items, int64_t keys_max,
                 bool chosen, bool moved) {
  SPILLWAY_CHECK(keys_max / kStoreRows < 65535);
  const auto z = static_cast<unsigned>(items), heads = static_cast<unsigned>(a.kv_heads);
  if (chosen) launch(context.stream(), {dim3(z, heads), dim3(kThreads)}, choose_kernel, a);
  const Grid rows{dim3(z, heads, blocks(keys_max, kStoreRows)), dim3(kThreads)};
  launch(context.stream(), rows, move_kept_kernel, a, false);
  if (moved) launch(context.stream(), rows, move_kept_kernel, a, true);
  context.check_launch("rows kept of prompts");
}

}  // namespace spillway::cuda
