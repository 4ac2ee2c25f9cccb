// Prompts: attention in tiles of keys with a running maximum and sum (Dao et al. 2022), the column
// sums of its softmax in a second pass over the statistics of the first, then the choice of the
// rows to keep. Plain float32 arithmetic, one warp per query; attention_tiles.cu does the first two
// on tensor cores where it can.
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
    if (first + row < item.tokens) {
      const int64_t at = item.first_row + first + row;
      x = (values ? a.value(at, kv_head) : a.key(at, kv_head))[column];
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

__device__ void load_query(const AttentionOnDevice& a, const ItemOnDevice& item, int64_t token,
                           int64_t head, float* q) {
  for (int64_t i = threadIdx.x % kWarp; i < a.head_size; i += kWarp) {
    q[i] = token < item.tokens ? a.query(item.first_row + token, head)[i] * a.scale : 0.0f;
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
  const int64_t head = blockIdx.y, kv_head = head / a.group();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWarps;
  if (first >= item.tokens) return;  // The whole block
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t token = first + warp;
  auto* shared = dynamic_shared<float>();
  float* q = shared + kTile * (a.head_size + 1) + warp * a.head_size;
  load_query(a, item, token, head, q);
  float most = -INFINITY, sum = 0, out[kColumnsMax] = {};
  const int64_t last = first + kWarps < item.tokens ? first + kWarps : item.tokens;
  for (int64_t tile = 0; tile < last; tile += kTile) {
    __syncthreads();  // The tile before has been used.
    load_tile(a, item, kv_head, tile, false, shared);
    __syncthreads();
    const bool past = tile + lane <= token && tile + lane < item.tokens;
    const float score = past ? dot_key(a, q, shared) : -INFINITY;
    __syncthreads();  // All have used the keys.
    load_tile(a, item, kv_head, tile, true, shared);
    __syncthreads();
    const float next = fmaxf(most, warp_max(score));
    // A row beyond the prompt's end has keys in its past, too: `next` is not -infinity here.
    const float weight = past ? expf(score - next) : 0.0f;
    const float old = expf(most - next);
    sum = sum * old + warp_sum(weight);
    most = next;
    for (int i = 0; i < kColumnsMax; ++i) out[i] *= old;
    for (int key = 0; key < kTile; ++key) {
      const float w = __shfl_sync(0xffffffffu, weight, key);
      for (int i = 0; i < kColumnsMax; ++i) {
        const int64_t column = lane + i * kWarp;
        if (column < a.head_size) out[i] += w * shared[key * (a.head_size + 1) + column];
      }
    }
  }
  if (token >= item.tokens) return;
  for (int i = 0; i < kColumnsMax; ++i) {
    const int64_t column = lane + i * kWarp;
    if (column < a.head_size) a.store_out(item.first_row + token, head, column, out[i] / sum);
  }
  if (item.sums != nullptr && lane == 0) {
    float* statistics = a.statistics + ((item.first_row + token) * a.heads + head) * 2;
    statistics[0] = most;
    statistics[1] = sum;
  }
}

// sums[key] = the weights that all queries of all heads that share it give the key. One block per
// tile of keys; its warps take the queries in turn.
__global__ void column_sums_kernel(const __grid_constant__ AttentionOnDevice a) {
  const ItemOnDevice item = a.item(blockIdx.z);
  const int64_t kv_head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  if (item.sums == nullptr || first >= item.tokens) return;  // The whole block
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  auto* keys = dynamic_shared<float>();
  float* q = keys + kTile * (a.head_size + 1) + warp * a.head_size;
  __shared__ float partial[kWarps][kWarp];
  load_tile(a, item, kv_head, first, false, keys);
  __syncthreads();
  float sum = 0;
  for (int64_t head = kv_head * a.group(); head < (kv_head + 1) * a.group(); ++head) {
    for (int64_t token = first + warp; token < item.tokens; token += kWarps) {
      __syncwarp();  // The query before has been used.
      load_query(a, item, token, head, q);
      __syncwarp();
      const float* statistics = a.statistics + ((item.first_row + token) * a.heads + head) * 2;
      if (first + lane <= token) sum += expf(dot_key(a, q, keys) - statistics[0]) / statistics[1];
    }
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || first + lane >= item.tokens) return;
  // Added in a fixed order: the same sums in every run.
  float total = 0;
  for (int i = 0; i < kWarps; ++i) total += partial[i][lane];
  item.sums[kv_head * item.tokens + first + lane] = total;
}

// Positions of the prompt before its last ones, which stay in any case; and the number of them that
// are chosen to stay.
__device__ int64_t before_recent(const ItemOnDevice& item) {
  return item.tokens > item.recent ? item.tokens - item.recent : 0;
}
__device__ int64_t kept_of(const ItemOnDevice& item) {
  const int64_t old = before_recent(item);
  return item.kept < old ? item.kept : old;
}

// A NaN score is the lowest.
__device__ float number(float score) {
  return score == score ? score : -1.0f;
}

// Whether position `a` is kept rather than `b`.
__device__ bool outranks(const float* sums, int64_t a, int64_t b) {
  const float x = number(sums[a]), y = number(sums[b]);
  return x != y ? x > y : a > b;
}

// Chooses the positions that a budget keeps of a prompt beside its last ones, as keep_prompt() of
// the CPU. One block per sequence and KV head.
__global__ void choose_kernel(const __grid_constant__ AttentionOnDevice a) {
  const ItemOnDevice item = a.item(blockIdx.x);
  const int64_t kv_head = blockIdx.y;
  if (item.kept == 0) return;  // The whole block
  const HeadStateOnDevice state = head_state(item, kv_head);
  const int64_t old = before_recent(item), count = kept_of(item);
  const float* sums = item.scored ? item.sums + kv_head * item.tokens : nullptr;
  // A position's rank by score says whether it stays, the number of those that stay before it gives
  // its slot: quadratic, but little beside the attention before it.
  __shared__ int64_t stays;
  if (threadIdx.x == 0) stays = 0;
  for (int64_t first = 0; first < old; first += blockDim.x) {
    const int64_t position = first + threadIdx.x;
    bool keep = position < old;
    if (keep && !item.scored) keep = position < count;
    if (keep && item.scored && count < old) {
      int64_t rank = 0;
      for (int64_t other = 0; other < old; ++other) {
        rank += outranks(sums, other, position) ? 1 : 0;
      }
      keep = rank < count;
    }
    const unsigned kept = __ballot_sync(0xffffffffu, keep);
    __shared__ int64_t before[kWarps + 1];
    if (threadIdx.x % kWarp == 0) before[threadIdx.x / kWarp] = __popc(kept);
    __syncthreads();
    int64_t place = stays + __popc(kept & ((1u << threadIdx.x % kWarp) - 1));
    for (unsigned warp = 0; warp < threadIdx.x / kWarp; ++warp) place += before[warp];
    if (keep) {
      state.positions[place] = static_cast<int32_t>(position);
      if (item.scored) state.scores[item.ring() + place] = sums[position];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int warp = 0; warp < kWarps; ++warp) stays += before[warp];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *state.moved = -1;
  if (!item.scored) return;
  for (int64_t token = old + threadIdx.x; token < item.tokens; token += blockDim.x) {
    state.scores[token % item.ring()] = sums[token];
  }
}

// Rows of keys and values that one block stores, one per warp in turn.
constexpr int64_t kStoreRows = 16;

// Stores the kept rows of a prompt: its last positions, or all, then the chosen ones. One block per
// kStoreRows rows of a sequence and KV head.
__global__ void store_prompt_kernel(const __grid_constant__ AttentionOnDevice a) {
  const ItemOnDevice item = a.item(blockIdx.x);
  const int64_t kv_head = blockIdx.y, first = blockIdx.z * kStoreRows;
  const int64_t old = item.full() ? 0 : before_recent(item), recent = item.tokens - old;
  const int64_t rows = recent + (item.full() ? 0 : kept_of(item));
  const int64_t last = first + kStoreRows < rows ? first + kStoreRows : rows;
  for (int64_t row = first + threadIdx.x / kWarp; row < last; row += kWarps) {
    int64_t token = old + row, slot = token;
    if (row >= recent) {
      token = head_state(item, kv_head).positions[row - recent];
      slot = item.ring() + row - recent;
    } else if (!item.full()) {
      slot = token % item.ring();
    }
    store_cached(a, a.key(item.first_row + token, kv_head), a.key_slot(item, kv_head, slot));
    store_cached(a, a.value(item.first_row + token, kv_head), a.value_slot(item, kv_head, slot));
  }
}

unsigned blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

void launch_prompts(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                    int64_t tokens_max, bool chosen) {
  SPILLWAY_CHECK(a.head_size <= kHeadSizeMax && items < 65536);
  SPILLWAY_CHECK(tokens_max / kStoreRows < 65535);
  const auto z = static_cast<unsigned>(items);
  const size_t shared = shared_bytes(a.head_size);
  const auto plain = [&] {
    launch(context.stream(),
           {dim3(blocks(tokens_max, kWarps), static_cast<unsigned>(a.heads), z), dim3(kThreads),
            shared},
           prompt_kernel, a);
    if (a.statistics == nullptr) return;
    launch(context.stream(),
           {dim3(blocks(tokens_max, kTile), static_cast<unsigned>(a.kv_heads), z), dim3(kThreads),
            shared},
           column_sums_kernel, a);
  };
  if (can_tile(a)) {
    launch_prompt_tiles(context, a, items, tokens_max);
  } else {
    plain();
  }
  const auto heads = static_cast<unsigned>(a.kv_heads);
  if (chosen) launch(context.stream(), {dim3(z, heads), dim3(kThreads)}, choose_kernel, a);
  launch(context.stream(), {dim3(z, heads, blocks(tokens_max, kStoreRows)), dim3(kThreads)},
         store_prompt_kernel, a);
  context.check_launch("prompt attention");
}

}  // namespace spillway::cuda
