// Prompts in narrow formats: attention in tiles of 64 query rows (query_row()) and 32 keys on
// tensor cores. Queries, keys and values are rounded to the format of the output on their way into
// shared memory. Instead of a running maximum (Dao et al. 2022) a first pass over the keys finds
// each row's maximum and sum and a second one its output: one more product of queries and keys, and
// no output is ever rescaled. The column sums that a budget by score needs (kernels/ops.h) are a
// third pass.
#include "kernels/base/check.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/tile.cuh"

namespace spillway::cuda {

namespace {

constexpr int kWarps = 4;
constexpr unsigned kThreads = kWarps * kWarp;
constexpr int kQueries = kWarps * kTileSide;  // Queries per block
constexpr int kKeys = 2 * kTileSide;          // Keys per tile, one per lane
constexpr int kHeadTilesMax = 8;              // Head sizes up to 128
constexpr unsigned kScoreStride = kKeys + 4;  // Padded against bank conflicts
constexpr unsigned kWeightStride = kKeys + 8;
static_assert(kKeys == kWarp);

// Shared memory of a block. Rows of queries, keys and values are head_size + 8 long.
template <class T>
struct Shared {
  T* queries;     // [kQueries]
  T* keys;        // [kKeys], the values of the same tile, too
  float* scores;  // [kQueries][kScoreStride]
  T* weights;     // [kQueries][kWeightStride]

  __device__ explicit Shared(unsigned stride) {
    scores = dynamic_shared<float>();
    weights = reinterpret_cast<T*>(scores + kQueries * kScoreStride);
    queries = weights + kQueries * kWeightStride;
    keys = queries + kQueries * stride;
  }
};
constexpr size_t shared_bytes(int64_t head_size) {
  const auto row = static_cast<size_t>(head_size + 8) * 2;
  return kQueries * (kScoreStride * sizeof(float) + kWeightStride * 2) + (kQueries + kKeys) * row;
}
static_assert(shared_bytes(kHeadTilesMax * kTileSide) + kWarps * kWarp * sizeof(float) <=
              kSharedBytesMax);

// Loads query rows from `first` on, scaled; zeros after the last.
template <class T>
__device__ void load_queries(const AttentionOnDevice& a, const ItemOnDevice& item, int64_t kv_head,
                             int64_t first, T* to) {
  const auto size = static_cast<int>(a.head_size);
  for (int i = static_cast<int>(threadIdx.x); i < kQueries * size; i += kThreads) {
    const int row = i / size, column = i % size;
    const QueryRow query = query_row(a, item, kv_head, first + row);
    float x = 0;
    if (query.token < item.tokens) {
      x = a.query(item.first_row + query.token, query.head)[column];
    }
    to[row * (size + 8) + column] = narrow<T>(x * a.scale);
  }
}

// Loads a tile's keys or values; zeros after the last.
template <class T>
__device__ void load_keys(const AttentionOnDevice& a, const ItemOnDevice& item, int64_t kv_head,
                          int64_t first, bool values, T* to) {
  const auto size = static_cast<int>(a.head_size);
  for (int i = static_cast<int>(threadIdx.x) * 4; i < kKeys * size; i += kThreads * 4) {
    const int row = i / size, column = i % size;
    float four[4] = {};
    if (first + row < item.keys()) {
      const std::byte* at = a.slot_in(item.source, kv_head, item.source_slot(first + row));
      cached4(a, values ? at + a.value_offset() : at, column, four);
    }
    for (int j = 0; j < 4; ++j) to[row * (size + 8) + column + j] = narrow<T>(four[j]);
  }
}

// Multiplies this warp's 16 queries by the tile's 32 keys into its rows of `scores`, which its
// lanes have read: a block barrier lies between two calls.
template <class T>
__device__ void multiply_keys(const AttentionOnDevice& a, const Shared<T>& shared) {
  const auto size = static_cast<unsigned>(a.head_size), stride = size + 8;
  const unsigned row = threadIdx.x / kWarp * kTileSide;
  for (unsigned key = 0; key < kKeys; key += kTileSide) {
    Tile<T> tile;
    tile.clear();
    for (unsigned k = 0; k < size; k += kTileSide) {
      tile.template add<TileOrder::kColumns>(shared.queries + row * stride + k, stride,
                                             shared.keys + key * stride + k, stride);
    }
    tile.store(shared.scores + row * kScoreStride + key, kScoreStride);
  }
  __syncwarp();
}

// One lane's half of a row's scores: those of keys that the row sees; two lanes share a row.
struct RowHalf {
  const float* scores;
  int first, end;  // Of kKeys / 2

  __device__ bool seen(int i) const { return i >= first && i < end; }
};
__device__ RowHalf row_half(const AttentionOnDevice& a, const float* scores, int64_t position,
                            int64_t first_key) {
  const unsigned lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp * kTileSide + lane / 2;
  const int64_t from = first_key + lane % 2 * (kKeys / 2);
  const auto within = [&](int64_t key) {
    return key < from ? 0 : key - from < kKeys / 2 ? static_cast<int>(key - from) : kKeys / 2;
  };
  return {scores + row * kScoreStride + lane % 2 * (kKeys / 2), within(first_seen(a, position)),
          within(position + 1)};
}

template <class T>
__global__ void tiles_kernel(const __grid_constant__ AttentionOnDevice a) {
  const ItemOnDevice item = a.item(blockIdx.z);
  const int64_t kv_head = blockIdx.y, first = static_cast<int64_t>(blockIdx.x) * kQueries;
  if (first >= item.tokens * a.group()) return;  // The whole block
  const auto size = static_cast<unsigned>(a.head_size), stride = size + 8;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  // The query of this lane's row
  const QueryRow query = query_row(a, item, kv_head, first + warp * kTileSide + lane / 2);
  const int64_t first_key = first_seen(a, query_row(a, item, kv_head, first).position);
  const int64_t first_tile = first_key / kKeys * kKeys;
  const int64_t last_row = query_row(a, item, kv_head, first + kQueries - 1).position;
  const int64_t last = last_row + 1 < item.keys() ? last_row + 1 : item.keys();
  const Shared<T> shared(stride);
  load_queries(a, item, kv_head, first, shared.queries);

  float most = -INFINITY, sum = 0;
  for (int64_t tile = first_tile; tile < last; tile += kKeys) {
    __syncthreads();  // The tile before has been used.
    load_keys(a, item, kv_head, tile, false, shared.keys);
    __syncthreads();
    multiply_keys(a, shared);
    const RowHalf half = row_half(a, shared.scores, query.position, tile);
    float next = most;
    for (int i = half.first; i < half.end; ++i) next = fmaxf(next, half.scores[i]);
    next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 1));
    float added = 0;
    for (int i = half.first; i < half.end; ++i) added += expf(half.scores[i] - next);
    added += __shfl_xor_sync(0xffffffffu, added, 1);
    // Equal ones may be -infinity, of a row that has seen no key yet.
    sum = sum * (most == next ? 1.0f : expf(most - next)) + added;
    most = next;
  }
  if (item.sums != nullptr && query.token < item.tokens && lane % 2 == 0) {
    float* statistics = a.statistics_of(item.first_row + query.token, query.head);
    statistics[0] = most;
    statistics[1] = sum;
  }

  Tile<T> out[kHeadTilesMax];
  for (Tile<T>& tile : out) tile.clear();
  T* const weights = shared.weights + warp * kTileSide * kWeightStride;
  for (int64_t tile = first_tile; tile < last; tile += kKeys) {
    __syncthreads();
    load_keys(a, item, kv_head, tile, false, shared.keys);
    __syncthreads();
    multiply_keys(a, shared);
    const RowHalf half = row_half(a, shared.scores, query.position, tile);
    T* const row = weights + lane / 2 * kWeightStride + lane % 2 * (kKeys / 2);
    for (int i = 0; i < kKeys / 2; ++i) {
      row[i] = narrow<T>(half.seen(i) ? expf(half.scores[i] - most) / sum : 0.0f);
    }
    __syncthreads();  // The keys have been used by all.
    load_keys(a, item, kv_head, tile, true, shared.keys);
    __syncthreads();
    SPILLWAY_UNROLL
    for (unsigned j = 0; j < kHeadTilesMax; ++j) {
      if (j * kTileSide >= size) break;
      for (unsigned key = 0; key < kKeys; key += kTileSide) {
        out[j].template add<TileOrder::kRows>(weights + key, kWeightStride,
                                              shared.keys + key * stride + j * kTileSide, stride);
      }
    }
  }
  float* const part = shared.scores + warp * kTileSide * kScoreStride;
  SPILLWAY_UNROLL
  for (unsigned j = 0; j < kHeadTilesMax; ++j) {
    if (j * kTileSide >= size) break;
    __syncwarp();
    out[j].store(part, kScoreStride);
    __syncwarp();
    for (unsigned i = lane; i < kTileSide * kTileSide; i += kWarp) {
      const unsigned row = i / kTileSide, column = i % kTileSide;
      const QueryRow at = query_row(a, item, kv_head, first + warp * kTileSide + row);
      if (at.token >= item.tokens) continue;
      a.store_out(item.first_row + at.token, at.head, j * kTileSide + column,
                  part[row * kScoreStride + column]);
    }
  }
}

// sums[key] += the weights that all query rows give the key; a key that is new has no sum before.
// One block per tile of keys, one lane per key; added in a fixed order, so that every run has the
// same sums.
template <class T>
__global__ void column_sums_kernel(const __grid_constant__ AttentionOnDevice a) {
  const ItemOnDevice item = a.item(blockIdx.z);
  const int64_t kv_head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kKeys;
  if (item.sums == nullptr || first >= item.keys()) return;  // The whole block
  const unsigned stride = static_cast<unsigned>(a.head_size) + 8;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t key = first + lane;
  const Shared<T> shared(stride);
  __shared__ float partial[kWarps][kWarp];
  load_keys(a, item, kv_head, first, false, shared.keys);
  float sum = 0;
  const RowRange rows = scored_rows(a, item, first, first + kKeys);
  for (int64_t tile = rows.first / kQueries * kQueries; tile < rows.end; tile += kQueries) {
    __syncthreads();  // The queries before have been used.
    load_queries(a, item, kv_head, tile, shared.queries);
    __syncthreads();
    multiply_keys(a, shared);
    for (int i = 0; i < kTileSide; ++i) {
      const QueryRow row = query_row(a, item, kv_head, tile + warp * kTileSide + i);
      if (row.token >= item.tokens) break;
      if (row.position < key || first_seen(a, row.position) > key) continue;
      if (row.position < item.scored_from) continue;
      const float* statistics = a.statistics_of(item.first_row + row.token, row.head);
      const float score = shared.scores[(warp * kTileSide + i) * kScoreStride + lane];
      sum = with_weight(item, sum, expf(score - statistics[0]) / statistics[1]);
    }
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || key >= item.keys()) return;
  float total = 0;
  for (int i = 0; i < kWarps; ++i) total = with_weight(item, total, partial[i][lane]);
  float* at = item.sums_of(kv_head) + key;
  *at = key < item.position ? with_weight(item, *at, total) : total;
}

unsigned blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

template <class T>
void launch_tiles(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                  int64_t tokens_max, int64_t keys_max) {
  const auto z = static_cast<unsigned>(items), heads = static_cast<unsigned>(a.kv_heads);
  const size_t shared = shared_bytes(a.head_size);
  const int64_t rows = tokens_max * (a.heads / a.kv_heads);
  launch(context.stream(), {dim3(blocks(rows, kQueries), heads, z), dim3(kThreads), shared},
         tiles_kernel<T>, a);
  if (a.statistics == nullptr) return;
  launch(context.stream(), {dim3(blocks(keys_max, kKeys), heads, z), dim3(kThreads), shared},
         column_sums_kernel<T>, a);
}

}  // namespace

bool can_tile(const AttentionOnDevice& a) {
  return a.out_dtype != DType::kF32 && a.head_size % kTileSide == 0 &&
         a.head_size <= kHeadTilesMax * kTileSide;
}

void launch_prompt_tiles(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                         int64_t tokens_max, int64_t keys_max) {
  SPILLWAY_CHECK(can_tile(a));
  if (a.out_dtype == DType::kF16) launch_tiles<__half>(context, a, items, tokens_max, keys_max);
  if (a.out_dtype == DType::kBF16) {
    launch_tiles<__nv_bfloat16>(context, a, items, tokens_max, keys_max);
  }
}

}  // namespace spillway::cuda
