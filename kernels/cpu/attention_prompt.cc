// Attention of a whole prompt for one head: both matrix products run on the panel kernels of
// gemm_f32.h, with keys and values packed once as if they were weights.
#include <algorithm>
#include <limits>

#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/kv_layout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_prompt.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "kernels/cpu/vector_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr size_t kWidth = static_cast<size_t>(kGemmColumns);  // Keys of a score tile

// e^x for x up to 0. Exp's own domain ends near -104; clamping keeps -infinity out of it.
HWY_INLINE V exp_of(V x) {
  const D d;
  return hn::Exp(d, hn::Max(x, hn::Set(d, -100.0f)));
}

// Softmax of the rows of a score tile, of which row i has `valid` + i keys in the past, if that is
// between 0 and the tile's keys: turns scores into exp(score - maximum), zero for other keys;
// updates the running maxima and sums. factor[i] rescales the earlier sums. Vectors without a key
// in the past cost nothing but their zeros. `maximum` has whole vectors of numbers, whatever `rows`
// is.
void SoftmaxTile(float* HWY_RESTRICT scores, int64_t rows, int64_t valid,
                 float* HWY_RESTRICT maximum, float* HWY_RESTRICT sum, float* HWY_RESTRICT factor) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V none = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto valid_of = [&](int64_t row) {
    return static_cast<size_t>(std::clamp<int64_t>(valid + row, 0, kGemmColumns));
  };
  const auto in_past = [&](size_t count, size_t j) {
    return hn::FirstN(d, std::min(count - j, lanes));
  };
  HWY_ALIGN float highest[kGemmRowsMax];
  std::copy_n(maximum, static_cast<size_t>(kGemmRowsMax), highest);
  for (int64_t i = 0; i < rows; ++i) {
    const float* HWY_RESTRICT row = scores + i * kGemmColumns;
    const size_t count = valid_of(i);
    V most = hn::Set(d, highest[i]);
    for (size_t j = 0; j < count; j += lanes) {
      most = hn::Max(most, hn::IfThenElse(in_past(count, j), hn::Load(d, row + j), none));
    }
    highest[i] = hn::GetLane(hn::MaxOfLanes(d, most));
  }
  for (size_t i = 0; i < static_cast<size_t>(rows); i += lanes) {
    const V high = hn::Load(d, highest + i);
    hn::StoreU(exp_of(hn::Sub(hn::LoadU(d, maximum + i), high)), d, factor + i);
    hn::StoreU(high, d, maximum + i);
  }
  for (int64_t i = 0; i < rows; ++i) {
    float* HWY_RESTRICT row = scores + i * kGemmColumns;
    const size_t count = valid_of(i);
    const V high = hn::Set(d, highest[i]);
    V total = hn::Zero(d);
    size_t j = 0;
    for (; j < count; j += lanes) {
      const V score = hn::Sub(hn::Load(d, row + j), high);
      // Neither Max nor Exp keeps NaN; from here on the sum does.
      const V e = hn::IfThenElse(hn::IsNaN(score), score, exp_of(score));
      const V kept = hn::IfThenElseZero(in_past(count, j), e);
      hn::Store(kept, d, row + j);
      total = hn::Add(total, kept);
    }
    for (; j < kWidth; j += lanes) hn::Store(hn::Zero(d), d, row + j);
    sum[i] = sum[i] * factor[i] + hn::GetLane(hn::SumOfLanes(d, total));
  }
}

// `to` may be `from`.
HWY_INLINE void scale_row(const float* from, float factor, size_t count, float* to) {
  const D d;
  const V f = hn::Set(d, factor);
  const size_t lanes = hn::Lanes(d);
  size_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, from + j), f), d, to + j);
  }
  for (; j < count; ++j) to[j] = from[j] * factor;
}

void ScaleRow(const float* from, float factor, size_t count, float* to) {
  scale_row(from, factor, count, to);
}

// Scales each row of [columns / 64][96][64] by its factor.
void ScaleRows(float* HWY_RESTRICT tile, int64_t rows, int64_t columns,
               const float* HWY_RESTRICT factor) {
  for (int64_t i = 0; i < rows; ++i) {
    if (factor[i] == 1.0f) continue;
    for (int64_t c = 0; c < columns; c += kGemmColumns) {
      float* row = tile + c * kGemmRowsMax + i * kGemmColumns;
      scale_row(row, factor[i], kWidth, row);
    }
  }
}

// factor[i] = exp(from[i] - to[i]) / sum[i]; `count` is a multiple of a vector's lanes.
void SoftmaxFactors(const float* HWY_RESTRICT from, const float* HWY_RESTRICT to,
                    const float* HWY_RESTRICT sum, size_t count, float* HWY_RESTRICT factor) {
  const D d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const V x = hn::Max(hn::Sub(hn::LoadU(d, from + i), hn::LoadU(d, to + i)), hn::Set(d, -100.0f));
    hn::StoreU(hn::Div(hn::Exp(d, x), hn::LoadU(d, sum + i)), d, factor + i);
  }
}

// to[j] += sum over rows i of factor[i] * tile[i][j], 64 columns.
void AddColumns(const float* HWY_RESTRICT tile, const float* HWY_RESTRICT factor, size_t rows,
                float* HWY_RESTRICT to) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t j = 0; j < kWidth; j += 2 * lanes) {
    V a = hn::LoadU(d, to + j);
    V b = hn::LoadU(d, to + j + lanes);
    for (size_t i = 0; i < rows; ++i) {
      const V f = hn::Set(d, factor[i]);
      a = hn::MulAdd(f, hn::Load(d, tile + i * kWidth + j), a);
      b = hn::MulAdd(f, hn::Load(d, tile + i * kWidth + j + lanes), b);
    }
    hn::StoreU(a, d, to + j);
    hn::StoreU(b, d, to + j + lanes);
  }
}

void StoreRow(DType dtype, const float* from, size_t count, std::byte* to) {
  store_row(dtype, from, count, to);
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {

HWY_EXPORT(SoftmaxTile);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(ScaleRows);
HWY_EXPORT(SoftmaxFactors);
HWY_EXPORT(AddColumns);
HWY_EXPORT(StoreRow);

namespace {

constexpr int64_t kTileRows = kGemmRowsMax;  // Queries
constexpr int64_t kTileKeys = kGemmColumns;  // Keys

int64_t round_to(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Scratch of attend_prompt, in floats.
struct PromptScratch {
  int64_t key_floats;    // All keys: panels of 16 keys, [head size][16]
  int64_t value_floats;  // All values: per tile of 64 keys, panels of 16 columns, [64][16]
  int64_t width;         // Head size rounded up to 64
  int64_t kept_tiles;    // Score tiles that live until a query tile's end
  PromptScratch(const HeadView& view, bool scored)
      : key_floats(round_to(view.tokens, kTileKeys) * round_to(view.head_size, 16)),
        value_floats(round_to(view.tokens, kTileKeys) * round_to(view.head_size, kGemmColumns)),
        width(round_to(view.head_size, kGemmColumns)),
        kept_tiles(scored ? round_to(view.tokens, kTileKeys) / kTileKeys : 1) {}
  int64_t floats() const {
    return key_floats + value_floats +
           kTileRows * (kept_tiles * (kTileKeys + 1) + 2 * width + kTileKeys + 16) + 64;
  }
};

// Keys as the weights of q k^T: outputs are keys, inputs the head's columns.
void pack_keys(const HeadView& view, float* packed) {
  const int64_t depth = round_to(view.head_size, 16);
  std::fill(packed, packed + round_to(view.tokens, kTileKeys) * depth, 0.0f);
  int64_t key = 0;
  for (; key + 16 <= view.tokens; key += 16) {
    pack_strip(view.k + key * view.stride, view.stride, 16, view.head_size, packed + key * depth);
  }
  for (; key < view.tokens; ++key) {
    const float* k = view.k + key * view.stride;
    float* target = packed + key / 16 * depth * 16 + key % 16;
    for (int64_t i = 0; i < view.head_size; ++i) target[i * 16] = k[i];
  }
}

// Values as the weights of p v, per tile of 64 keys: outputs are columns, inputs are keys.
void pack_values(const HeadView& view, int64_t width, float* packed) {
  const int64_t tiles = round_to(view.tokens, kTileKeys) / kTileKeys;
  std::fill(packed, packed + tiles * kTileKeys * width, 0.0f);
  for (int64_t key = 0; key < view.tokens; ++key) {
    const float* v = view.v + key * view.stride;
    float* tile = packed + key / kTileKeys * kTileKeys * width + key % kTileKeys * 16;
    for (int64_t i = 0; i < view.head_size; i += 16) {
      std::copy_n(v + i, std::min<int64_t>(16, view.head_size - i), tile + i * kTileKeys);
    }
  }
}

// The buffers of one tile of queries.
struct QueryTile {
  float* strips;   // Queries, scaled and packed
  float* scores;   // [rows][64]; by key tile when they are kept
  float* packed;   // The scores as strips
  float* out;      // [width / 64][rows][64]
  float* maximum;  // [rows]
  float* sum;      // [rows]
  float* factor;   // [rows]
  float* maxima;   // [key tile][rows]: maxima subtracted from the kept scores
};

// Adds the keys of one tile to the running softmax and output of the query tile.
void add_key_tile(const HeadView& view, const PromptScratch& sizes, const QueryTile& tile,
                  int64_t first_query, int64_t rows, int64_t first_key, const float* keys,
                  const float* values) {
  const int64_t depth = round_to(view.head_size, 16);
  multiply_tile(tile.strips, rows, view.head_size, Format::kF32,
                reinterpret_cast<const std::byte*>(keys + first_key * depth), false, tile.scores);
  HWY_DYNAMIC_DISPATCH(SoftmaxTile)
  (tile.scores, rows, first_query + 1 - first_key, tile.maximum, tile.sum, tile.factor);
  HWY_DYNAMIC_DISPATCH(ScaleRows)(tile.out, rows, sizes.width, tile.factor);
  pack_strips(tile.scores, kTileKeys, rows, kTileKeys, tile.packed);
  const float* tile_values = values + first_key * sizes.width;
  for (int64_t c = 0; c < sizes.width; c += kGemmColumns) {
    multiply_tile(tile.packed, rows, kTileKeys, Format::kF32,
                  reinterpret_cast<const std::byte*>(tile_values + c * kTileKeys), true,
                  tile.out + c * kTileRows);
  }
}

void store_tile_rows(const HeadView& view, const PromptScratch& sizes, const QueryTile& tile,
                     int64_t first_query, int64_t rows) {
  const size_t element = dtype_bytes(view.out_dtype);
  for (int64_t i = 0; i < rows; ++i) {
    std::byte* out = view.out + static_cast<size_t>((first_query + i) * view.out_stride) * element;
    for (int64_t c = 0; c < sizes.width; c += kGemmColumns) {
      float* row = tile.out + c * kTileRows + i * kGemmColumns;
      HWY_DYNAMIC_DISPATCH(ScaleRow)
      (row, 1.0f / tile.sum[i], static_cast<size_t>(kGemmColumns), row);
      const int64_t count = std::min(kGemmColumns, view.head_size - c);
      HWY_DYNAMIC_DISPATCH(StoreRow)
      (view.out_dtype, row, static_cast<size_t>(count), out + static_cast<size_t>(c) * element);
    }
  }
}

// Adds the tile's softmax weights to the scores of its keys, now that the sums are known.
void add_scores(const HeadView& view, const QueryTile& tile, int64_t rows, int64_t keys) {
  for (int64_t first = 0; first < keys; first += kTileKeys) {
    const int64_t index = first / kTileKeys;
    HWY_DYNAMIC_DISPATCH(SoftmaxFactors)
    (tile.maxima + index * kTileRows, tile.maximum, tile.sum, static_cast<size_t>(kTileRows),
     tile.factor);
    HWY_DYNAMIC_DISPATCH(AddColumns)
    (tile.scores + index * kTileRows * kTileKeys, tile.factor, static_cast<size_t>(rows),
     view.scores + first);
  }
}

}  // namespace

size_t prompt_scratch_bytes(const HeadView& view, bool scored) {
  return static_cast<size_t>(PromptScratch(view, scored).floats()) * sizeof(float);
}

void attend_prompt(const HeadView& view, float* scratch) {
  const bool scored = view.scores != nullptr;
  const PromptScratch sizes(view, scored);
  float* keys = scratch;
  float* values = keys + sizes.key_floats;
  QueryTile tile{};
  tile.scores = values + sizes.value_floats;
  tile.packed = tile.scores + sizes.kept_tiles * kTileRows * kTileKeys;
  tile.out = tile.packed + kTileRows * kTileKeys;
  tile.strips = tile.out + kTileRows * sizes.width;
  tile.maximum = tile.strips + kTileRows * sizes.width;
  tile.sum = tile.maximum + kTileRows;
  tile.factor = tile.sum + kTileRows;
  tile.maxima = tile.factor + kTileRows;
  // Vectors include the rows that a short tile lacks.
  std::fill_n(tile.maximum, kTileRows * 3 + sizes.kept_tiles * kTileRows, 1.0f);
  pack_keys(view, keys);
  pack_values(view, sizes.width, values);
  for (int64_t first = 0; first < view.tokens; first += kTileRows) {
    const int64_t rows = std::min(kTileRows, view.tokens - first);
    // The scale goes into the queries: one multiplication per query element instead of one per
    // score.
    for (int64_t i = 0; i < rows; ++i) {
      const float* q = view.q + (first + i) * view.stride;
      HWY_DYNAMIC_DISPATCH(ScaleRow)
      (q, view.scale, static_cast<size_t>(view.head_size), tile.out + i * view.head_size);
    }
    pack_strips(tile.out, view.head_size, rows, view.head_size, tile.strips);
    std::fill_n(tile.out, kTileRows * sizes.width, 0.0f);
    std::fill_n(tile.maximum, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(tile.sum, rows, 0.0f);
    for (int64_t key = 0; key < first + rows; key += kTileKeys) {
      QueryTile part = tile;
      const int64_t index = scored ? key / kTileKeys : 0;
      part.scores += index * kTileRows * kTileKeys;
      add_key_tile(view, sizes, part, first, rows, key, keys, values);
      if (scored) std::copy_n(tile.maximum, rows, tile.maxima + index * kTileRows);
    }
    if (scored) add_scores(view, tile, rows, first + rows);
    store_tile_rows(view, sizes, tile, first, rows);
  }
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
