// Prompts in narrow formats on tensor cores: attention of 64 query rows (query_row()) to tiles of
// 64 keys with a running maximum and sum (Dao et al. 2022), scores and weights in registers (Dao
// 2023). Keys and values are rounded to the format of the output on their way into shared memory;
// where they have it already the next ones are copied while these are multiplied. The column sums
// that a budget by score needs (kernels/ops.h) are a second product of queries and keys.
#include "kernels/base/check.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/mma.cuh"

namespace spillway::cuda {

namespace {

constexpr int kWarps = 4;
constexpr unsigned kThreads = kWarps * kWarp;
constexpr int kRows = 16;                 // Queries of a warp
constexpr int kQueries = kWarps * kRows;  // Of a block
constexpr int kKeys = 64;                 // Of a tile
constexpr int kColumnsMax = 128;          // Head sizes up to this
constexpr int kPart = 8;                  // Numbers that are copied to shared memory at once
constexpr float kLog2e = 1.4426950408889634f;

// Rows in shared memory: kColumns numbers, zeros after the last, and padding, so that eight rows of
// a block of 8 x 8 meet no bank twice.
constexpr int stride_of(int columns) {
  return columns + kPart;
}
constexpr size_t shared_bytes(int columns, int tiles) {
  return static_cast<size_t>(tiles * kKeys * stride_of(columns)) * 2;
}
static_assert(shared_bytes(kColumnsMax, 2) + kWarps * kKeys * sizeof(float) <= kSharedBytesMax);

template <class T>
__device__ bool same_format(const AttentionOnDevice& a) {
  return a.kv_format == (std::is_same_v<T, __half> ? Format::kF16 : Format::kBF16);
}

// Begins to copy a tile's keys or values, KV block by KV block; zeros after the last.
// end_of_copies() follows. REQUIRES: the tile has a key.
template <class T, int kColumns>
__device__ void load_tile(const AttentionOnDevice& a, const ItemOnDevice& item, int64_t kv_head,
                          int first, bool values, T* to) {
  constexpr int kParts = kColumns / kPart, kBlock = static_cast<int>(kKvBlockRows);
  const int keys = static_cast<int>(item.keys()), size = static_cast<int>(a.head_size);
  const bool same = same_format<T>(a);
  const KvBlocks source = item.source();
  const int first_slot = item.rows == 0 ? first : first % item.rows;  // A ring has whole tiles.
  for (int begin = 0; begin < kKeys; begin += kBlock) {
    // A block without a key need not exist: nothing is read of the tile's first one in its place.
    const int slot = first_slot + (first + begin < keys ? begin : 0);
    const std::byte* run = a.slot_in(source, kv_head, slot);
    if (values) run += a.value_offset();
    for (int i = static_cast<int>(threadIdx.x); i < kBlock * kParts;
         i += static_cast<int>(kThreads)) {
      const int row = i / kParts, column = i % kParts * kPart;
      const bool there = first + begin + row < keys && column < size;
      const std::byte* at = run + row * static_cast<int>(a.row_bytes);
      T* const into = to + (begin + row) * stride_of(kColumns) + column;
      if (same) {
        copy_ahead(into, at + (there ? column : 0) * static_cast<int>(sizeof(T)), there);
        continue;
      }
      float eight[kPart] = {};
      if (there) {
        cached4(a, at, column, eight);
        cached4(a, at, column + 4, eight + 4);
      }
      for (int j = 0; j < kPart; ++j) into[j] = narrow<T>(eight[j]);
    }
  }
}

// The two query rows of this lane among 16 of its warp.
struct LaneRows {
  QueryRow at[2];

  __device__ LaneRows(const AttentionOnDevice& a, const ItemOnDevice& item, int64_t kv_head,
                      int64_t first) {
    const int64_t row = first + static_cast<int>(threadIdx.x) / kWarp * kRows + fragment_group();
    at[0] = query_row(a, item, kv_head, row);
    at[1] = query_row(a, item, kv_head, row + 8);
  }
};

// This lane's parts of its warp's queries, scaled; zeros after the last.
template <class T, int kColumns>
__device__ void load_queries(const AttentionOnDevice& a, const ItemOnDevice& item,
                             const LaneRows& rows, FactorRows (&to)[kColumns / 16]) {
  const int size = static_cast<int>(a.head_size);
  SPILLWAY_UNROLL
  for (int k = 0; k < kColumns / 16; ++k) {
    SPILLWAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      const QueryRow& row = rows.at[i % 2];
      const int column = k * 16 + i / 2 * 8 + fragment_pair();
      float2 two = {0, 0};
      if (row.token < item.tokens && column < size) {
        two = *reinterpret_cast<const float2*>(a.query(item.first_row + row.token, row.head) +
                                               column);
      }
      to[k].x[i] = pack_two<T>(two.x * a.scale, two.y * a.scale);
    }
  }
}

// This warp's 16 queries by 8 keys.
template <class T, int kColumns>
__device__ ProductSums score(const FactorRows (&queries)[kColumns / 16], const T* keys) {
  ProductSums sums{};
  SPILLWAY_UNROLL
  for (int k = 0; k < kColumns / 16; k += 2) {
    uint32_t four[4];
    load_blocks(keys + k * 16, stride_of(kColumns), four);
    multiply_add<T>(sums, queries[k], {{four[0], four[1]}});
    multiply_add<T>(sums, queries[k + 1], {{four[2], four[3]}});
  }
  return sums;
}

// Whether the query sees the key.
__device__ bool sees(const AttentionOnDevice& a, const QueryRow& row, int64_t key) {
  return key <= row.position && key >= first_seen(a, row.position);
}

// Sum and maximum over the four lanes that share their query rows.
__device__ float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads, 2)
    tiles_kernel(const __grid_constant__ AttentionOnDevice a) {
  constexpr int kStride = stride_of(kColumns);
  const ItemOnDevice item = a.item(blockIdx.z);
  // The last rows attend to most keys, so they begin first.
  const int64_t kv_head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * kQueries;
  if (first >= item.tokens * a.group()) return;  // The whole block
  T* const keys = dynamic_shared<T>();
  T* const values = keys + kKeys * kStride;
  const int64_t first_position = query_row(a, item, kv_head, first).position;
  const int64_t last_position = query_row(a, item, kv_head, first + kQueries - 1).position;
  const int begin = static_cast<int>(first_seen(a, first_position) / kKeys * kKeys);
  const int end =
      static_cast<int>(last_position + 1 < item.keys() ? last_position + 1 : item.keys());
  load_tile<T, kColumns>(a, item, kv_head, begin, false, keys);
  end_of_copies();
  const LaneRows rows(a, item, kv_head, first);
  FactorRows queries[kColumns / 16];
  load_queries<T, kColumns>(a, item, rows, queries);

  ProductSums out[kColumns / 8];
  SPILLWAY_UNROLL
  for (ProductSums& part : out) part = {};
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  for (int tile = begin; tile < end; tile += kKeys) {
    load_tile<T, kColumns>(a, item, kv_head, tile, true, values);
    end_of_copies();
    wait_for_copies<1>();
    __syncthreads();  // The keys are there.
    ProductSums scores[kKeys / 8];
    SPILLWAY_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      scores[n] = score<T, kColumns>(queries, keys + n * 8 * kStride);
    }
    __syncthreads();  // The keys have been used.
    if (tile + kKeys < end) {
      load_tile<T, kColumns>(a, item, kv_head, tile + kKeys, false, keys);
    }
    end_of_copies();

    // Only tiles at the ends of what the block's rows see have keys that some do not.
    const bool all = tile + kKeys - 1 <= first_position && tile >= first_seen(a, last_position);
    if (!all) {
      SPILLWAY_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        SPILLWAY_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int key = tile + n * 8 + fragment_pair() + i % 2;
          if (!sees(a, rows.at[i / 2], key)) scores[n].x[i] = -INFINITY;
        }
      }
    }
    SPILLWAY_UNROLL
    for (int r = 0; r < 2; ++r) {
      float next = most[r];
      SPILLWAY_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        next = fmaxf(next, fmaxf(scores[n].x[2 * r], scores[n].x[2 * r + 1]));
      }
      next = row_max(next);
      // A row that has seen no key yet has none in this tile, either, where next is -infinity.
      const float base = next == -INFINITY ? 0.0f : next * kLog2e;
      const float old = exp2f(most[r] * kLog2e - base);
      most[r] = next;
      sum[r] *= old;
      SPILLWAY_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        SPILLWAY_UNROLL
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          scores[n].x[i] = exp2f(scores[n].x[i] * kLog2e - base);
          sum[r] += scores[n].x[i];
        }
      }
      SPILLWAY_UNROLL
      for (ProductSums& part : out) part.x[2 * r] *= old, part.x[2 * r + 1] *= old;
    }

    wait_for_copies<1>();
    __syncthreads();  // The values are there.
    SPILLWAY_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      FactorRows weights;
      SPILLWAY_UNROLL
      for (int i = 0; i < 4; ++i) {
        const ProductSums& from = scores[2 * k + i / 2];
        weights.x[i] = pack_two<T>(from.x[i % 2 * 2], from.x[i % 2 * 2 + 1]);
      }
      SPILLWAY_UNROLL
      for (int j = 0; j < kColumns / 8; j += 2) {
        uint32_t four[4];
        load_transposed(values + k * 16 * kStride + j * 8, kStride, four);
        multiply_add<T>(out[j], weights, {{four[0], four[1]}});
        multiply_add<T>(out[j + 1], weights, {{four[2], four[3]}});
      }
    }
    __syncthreads();  // The values have been used.
  }

  SPILLWAY_UNROLL
  for (int r = 0; r < 2; ++r) {
    const float whole = row_sum(sum[r]);
    const QueryRow& row = rows.at[r];
    if (row.token >= item.tokens) continue;
    T* const to = reinterpret_cast<T*>(a.out) + (item.first_row + row.token) * a.out_stride +
                  row.head * a.head_size;
    SPILLWAY_UNROLL
    for (int j = 0; j < kColumns / 8; ++j) {
      const int column = j * 8 + fragment_pair();
      if (column >= a.head_size) break;
      *reinterpret_cast<uint32_t*>(to + column) =
          pack_two<T>(out[j].x[2 * r] / whole, out[j].x[2 * r + 1] / whole);
    }
    if (item.sums == nullptr || fragment_pair() != 0) continue;
    float* statistics = a.statistics_of(item.first_row + row.token, row.head);
    statistics[0] = most[r];
    statistics[1] = whole;
  }
}

// sums[key] += the weights that all query rows give the key; a key that is new has no sum before.
// One block per tile of keys; added in a fixed order, so that every run has the same sums.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(const __grid_constant__ AttentionOnDevice a) {
  __shared__ float partial[kWarps][kKeys];
  const ItemOnDevice item = a.item(blockIdx.z);
  const int64_t kv_head = blockIdx.y;
  const int first = static_cast<int>(blockIdx.x) * kKeys;
  if (item.sums == nullptr || first >= item.keys()) return;  // The whole block
  T* const keys = dynamic_shared<T>();
  load_tile<T, kColumns>(a, item, kv_head, first, false, keys);
  end_of_copies();
  wait_for_copies<0>();
  __syncthreads();
  float added[kKeys / 8][2] = {};
  const RowRange range = scored_rows(a, item, first, first + kKeys);
  for (int64_t tile = range.first / kQueries * kQueries; tile < range.end; tile += kQueries) {
    const LaneRows rows(a, item, kv_head, tile);
    FactorRows queries[kColumns / 16];
    load_queries<T, kColumns>(a, item, rows, queries);
    float base[2] = {}, share[2] = {};
    bool counts[2];
    SPILLWAY_UNROLL
    for (int r = 0; r < 2; ++r) {
      const QueryRow& row = rows.at[r];
      counts[r] = row.token < item.tokens && row.position >= item.scored_from;
      if (!counts[r]) continue;
      const float* statistics = a.statistics_of(item.first_row + row.token, row.head);
      base[r] = statistics[0] * kLog2e;
      share[r] = 1 / statistics[1];
    }
    SPILLWAY_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      const ProductSums scores = score<T, kColumns>(queries, keys + n * 8 * stride_of(kColumns));
      SPILLWAY_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int key = first + n * 8 + fragment_pair() + i % 2;
        if (!counts[i / 2] || !sees(a, rows.at[i / 2], key)) continue;
        added[n][i % 2] = with_weight(item, added[n][i % 2],
                                      exp2f(scores.x[i] * kLog2e - base[i / 2]) * share[i / 2]);
      }
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  SPILLWAY_UNROLL
  for (int n = 0; n < kKeys / 8; ++n) {
    SPILLWAY_UNROLL
    for (int i = 0; i < 2; ++i) {
      float sum = added[n][i];
      for (int step = 4; step < kWarp; step *= 2) {
        sum = with_weight(item, sum, __shfl_xor_sync(0xffffffffu, sum, step));
      }
      if (fragment_group() == 0) partial[warp][n * 8 + fragment_pair() + i] = sum;
    }
  }
  __syncthreads();
  const int64_t key = first + static_cast<int64_t>(threadIdx.x);
  if (threadIdx.x >= kKeys || key >= item.keys()) return;
  float total = 0;
  for (int w = 0; w < kWarps; ++w) total = with_weight(item, total, partial[w][threadIdx.x]);
  float* at = item.sums_of(kv_head) + key;
  *at = key < item.position ? with_weight(item, *at, total) : total;
}

unsigned blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

template <class T, int kColumns>
void launch_tiles(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                  int64_t tokens_max, int64_t keys_max) {
  const auto z = static_cast<unsigned>(items), heads = static_cast<unsigned>(a.kv_heads);
  const int64_t rows = tokens_max * (a.heads / a.kv_heads);
  launch(context.stream(),
         {dim3(blocks(rows, kQueries), heads, z), dim3(kThreads), shared_bytes(kColumns, 2)},
         tiles_kernel<T, kColumns>, a);
  if (a.statistics == nullptr) return;
  launch(context.stream(),
         {dim3(blocks(keys_max, kKeys), heads, z), dim3(kThreads), shared_bytes(kColumns, 1)},
         column_sums_kernel<T, kColumns>, a);
}

template <class T>
void launch_tiles_of(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                     int64_t tokens_max, int64_t keys_max) {
  if (a.head_size <= kColumnsMax / 2) {
    launch_tiles<T, kColumnsMax / 2>(context, a, items, tokens_max, keys_max);
  } else {
    launch_tiles<T, kColumnsMax>(context, a, items, tokens_max, keys_max);
  }
}

}  // namespace

bool can_tile(const AttentionOnDevice& a) {
  return a.out_dtype != DType::kF32 && a.head_size % kPart == 0 && a.head_size <= kColumnsMax;
}

void launch_prompt_tiles(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                         int64_t tokens_max, int64_t keys_max) {
  SPILLWAY_CHECK(can_tile(a));
  if (a.out_dtype == DType::kF16) launch_tiles_of<__half>(context, a, items, tokens_max, keys_max);
  if (a.out_dtype == DType::kBF16) {
    launch_tiles_of<__nv_bfloat16>(context, a, items, tokens_max, keys_max);
  }
}

}  // namespace spillway::cuda
