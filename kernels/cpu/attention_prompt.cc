// Attention of prompt rows, tile by tile: in float32, by matrix units, or in 16-bit integers
// (attention_tile.h), or with both products of pairs of bf16 on the panel kernels of gemm_bf16.h
// (attention_bf16.h), with keys and values packed as if they were weights.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/attention_int16.h"
#include "kernels/cpu/attention_pack.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_f32.h"

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

// Scales rows [first, end) of [columns / 64][96][64], each by its factor.
void ScaleRows(float* HWY_RESTRICT tile, size_t first, size_t end, int64_t columns,
               const float* HWY_RESTRICT factor) {
  for (size_t i = first; i < end; ++i) {
    if (factor[i] == 1.0f) continue;
    for (int64_t c = 0; c < columns; c += kGemmColumns) {
      float* row = tile + c * kGemmRowsMax + i * kWidth;
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

// to[j] += factor[i] * tile[i][j], 64 columns, row by row from `first` to `end`.
void AddColumns(const float* HWY_RESTRICT tile, const float* HWY_RESTRICT factor, size_t first,
                size_t end, float* HWY_RESTRICT to) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t j = 0; j < kWidth; j += 2 * lanes) {
    V a = hn::LoadU(d, to + j);
    V b = hn::LoadU(d, to + j + lanes);
    for (size_t i = first; i < end; ++i) {
      const V f = hn::Set(d, factor[i]);
      a = hn::MulAdd(f, hn::Load(d, tile + i * kWidth + j), a);
      b = hn::MulAdd(f, hn::Load(d, tile + i * kWidth + j + lanes), b);
    }
    hn::StoreU(a, d, to + j);
    hn::StoreU(b, d, to + j + lanes);
  }
}

// to[j] = the highest of itself and of factor[i] * tile[i][j], for rows `first` to `end`.
void MaxColumns(const float* HWY_RESTRICT tile, const float* HWY_RESTRICT factor, size_t first,
                size_t end, float* HWY_RESTRICT to) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t j = 0; j < kWidth; j += lanes) {
    V most = hn::LoadU(d, to + j);
    for (size_t i = first; i < end; ++i) {
      most = hn::Max(most, hn::Mul(hn::Set(d, factor[i]), hn::Load(d, tile + i * kWidth + j)));
    }
    hn::StoreU(most, d, to + j);
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

HWY_EXPORT(ScaleRow);
HWY_EXPORT(ScaleRows);
HWY_EXPORT(SoftmaxFactors);
HWY_EXPORT(AddColumns);
HWY_EXPORT(MaxColumns);
HWY_EXPORT(StoreRow);

namespace {

constexpr int64_t kTileRows = kTileQueries;
static_assert(kTileRows == kGemmRowsMax && kTileKeys == kGemmColumns);

// Keys and values that are packed at once, and query tiles that pass over them: as much as a core's
// second-level cache holds.
constexpr int64_t kRunFloats = (int64_t{2} << 20) / 4;
constexpr int64_t kBlockFloats = (int64_t{1} << 20) / 4;
constexpr int64_t kRunTilesMax = 64;    // Of keys: also a bound on the kept tiles of scores
constexpr int64_t kBlockTilesMax = 16;  // Of queries

int64_t ceil_div(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

// How attend_prompt() goes through keys and queries; its scratch, in floats (pairs of bf16 or of
// 16-bit integers are as large as one, and a tile of these has room for its scales). All kinds of
// products take the same tiles, so that a kind needs no plan of its own.
struct PromptPlan {
  int64_t depth, width;  // Of packed keys and values, in floats: the most of all kinds
  int64_t key_tiles;     // Of all keys
  int64_t run_tiles;     // Key tiles that are packed at once
  bool at_once;          // These are all
  int64_t block_tiles;   // Query tiles that pass over a run together
  int64_t kept_tiles;    // Score tiles that live until a query tile's end

  PromptPlan(int64_t head_size, int64_t keys, bool scored)
      : depth(std::max(tile_depth(head_size), pair_columns(head_size))),
        width(value_width(head_size)) {
    key_tiles = ceil_div(keys, kTileKeys);
    const int64_t most = std::clamp<int64_t>(kRunFloats / run_floats(1), 1, kRunTilesMax);
    at_once = key_tiles <= most;
    run_tiles = std::min(key_tiles, most);
    block_tiles =
        at_once ? 1 : std::clamp<int64_t>(kBlockFloats / query_floats(), 1, kBlockTilesMax);
    kept_tiles = scored && at_once ? key_tiles : 1;
  }
  int64_t run_floats(int64_t tiles) const { return tiles * kTileKeys * (depth + width); }
  // A query tile: its rows as strips, its output, positions, maxima, sums, and a second pass's
  // maxima.
  int64_t query_floats() const { return kTileRows * (depth + width + 4); }
  // Scores of a tile as strips, kept ones with their maxima; factors, and a second pass's sums.
  int64_t score_floats() const {
    return kTileRows * (kTileKeys + kept_tiles * (kTileKeys + 1) + 2);
  }
  static int64_t scratch_floats(int64_t head_size) {
    // In whole cache lines, as all that follows
    return (std::max(pack_scratch_floats(head_size), pair_scratch_floats(head_size)) + 15) / 16 *
           16;
  }
  int64_t floats(int64_t head_size) const {
    return scratch_floats(head_size) + kTileKeys * depth + run_floats(run_tiles) +
           block_tiles * query_floats() + score_floats();
  }
};

// A tile of query rows and its range of key tiles.
struct QueryTile {
  int64_t first_row = 0, rows = 0;
  int64_t first = 0, end = 0;
  float* strips = nullptr;       // Queries, scaled and packed
  float* out = nullptr;          // As attention_tile.h, or [width / 64][96][64]
  int32_t* positions = nullptr;  // [96]
  float* maximum = nullptr;      // [96]
  float* sum = nullptr;          // [96]
  float* again = nullptr;        // [96]: the running maximum of a second pass
};

class PromptPass {
 public:
  PromptPass(const PromptView& view, float* scratch)
      : view_(view),
        head_(view.head),
        plan_(head_.head_size, view.keys(), head_.scores != nullptr) {
    const float* const end = scratch + plan_.floats(head_.head_size);
    const auto take = [&](int64_t floats) { return std::exchange(scratch, scratch + floats); };
    pack_scratch_ = take(PromptPlan::scratch_floats(head_.head_size));
    lines_ = take(kTileKeys * plan_.depth);
    keys_ = take(plan_.run_tiles * kTileKeys * plan_.depth);
    values_ = take(plan_.run_tiles * kTileKeys * plan_.width);
    for (int64_t i = 0; i < plan_.block_tiles; ++i) {
      QueryTile& tile = block_[i];
      tile.strips = take(kTileRows * plan_.depth);
      tile.out = take(kTileRows * plan_.width);
      tile.positions = reinterpret_cast<int32_t*>(take(kTileRows));
      tile.maximum = take(kTileRows);
      tile.sum = take(kTileRows);
      tile.again = take(kTileRows);
    }
    strips_ = take(kTileRows * kTileKeys);
    scores_ = take(plan_.kept_tiles * kTileRows * kTileKeys);
    maxima_ = take(plan_.kept_tiles * kTileRows);
    factor_ = take(kTileRows);
    sum_ = take(kTileRows);
    SPILLWAY_CHECK(scratch == end);
  }

  // A block of query tiles, of rows [first_row, end_row).
  void attend(int64_t first_row, int64_t end_row) {
    for (tiles_ = 0; first_row < end_row; first_row += kTileRows, ++tiles_) {
      begin(block_[tiles_], first_row, std::min(kTileRows, end_row - first_row));
    }
    for_key_tiles(true, [&](const QueryTile& tile, int64_t key_tile) {
      weigh(tile, key_tile, tile.maximum, tile.sum, tile.out);
    });
    if (head_.scores != nullptr) add_scores();
    for (int64_t i = 0; i < tiles_; ++i) store(block_[i]);
  }

  int64_t block_rows() const { return plan_.block_tiles * kTileRows; }

 private:
  // Rows of a query tile that see some key of a key tile.
  struct Range {
    size_t first, end;
  };
  Range rows_of(const QueryTile& tile, int64_t key_tile) const {
    const int32_t* const begin = tile.positions;
    const int32_t* const end = begin + tile.rows;
    const auto first_key = static_cast<int32_t>(key_tile * kTileKeys);
    const int32_t* first = std::lower_bound(begin, end, first_key);
    const int32_t* last =
        view_.window == 0 ? end
                          : std::lower_bound(first, end, first_key + kTileKeys + view_.window - 1);
    return {static_cast<size_t>(first - begin), static_cast<size_t>(last - begin)};
  }

  void begin(QueryTile& tile, int64_t first_row, int64_t rows) const {
    tile.first_row = first_row;
    tile.rows = rows;
    int64_t position = view_.position + first_row / view_.group;
    for (int64_t i = 0, head = first_row % view_.group; i < rows; ++i) {
      tile.positions[i] = static_cast<int32_t>(position);
      if (++head < view_.group) continue;
      head = 0;
      ++position;
    }
    std::fill(tile.positions + rows, tile.positions + kTileRows, tile.positions[rows - 1]);
    if (in_pairs()) {
      begin_pairs(tile);
    } else if (by_tiles()) {
      pack_queries(view_, first_row, rows, tile.out);
      pack_query_tiles(tile.out, rows, head_.head_size, view_.parts, pairs(tile.strips));
    } else if (by_int16()) {
      pack_queries(view_, first_row, rows, tile.out);
      pack_query_int16(tile.out, rows, head_.head_size, integers(tile.strips), steps(tile.strips));
    } else {
      pack_queries(view_, first_row, rows, tile.strips);
    }
    std::fill_n(tile.out, kTileRows * plan_.width, 0.0f);
    start(tile.maximum, tile.sum, rows);
    const int64_t sees = view_.window == 0 ? 0 : tile.positions[0] - view_.window + 1;
    tile.first = std::max<int64_t>(0, sees) / kTileKeys;
    tile.end = tile.positions[rows - 1] / kTileKeys + 1;
  }
  // The scale goes into the queries: one multiplication per query element instead of one per score.
  void begin_pairs(const QueryTile& tile) const {
    for (int64_t i = 0; i < tile.rows; ++i) {
      const int64_t row = tile.first_row + i;
      const float* q =
          head_.q + row / view_.group * head_.stride + row % view_.group * head_.head_size;
      HWY_DYNAMIC_DISPATCH(ScaleRow)
      (q, head_.scale, static_cast<size_t>(head_.head_size), tile.out + i * head_.head_size);
    }
    pack_pair_strips(tile.out, head_.head_size, tile.rows, head_.head_size, pairs(tile.strips));
  }
  // Vectors include the rows that a short tile lacks.
  static void start(float* maximum, float* sum, int64_t rows) {
    std::fill_n(maximum, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(maximum + rows, kTileRows - rows, 1.0f);
    std::fill_n(sum, rows, 0.0f);
    std::fill_n(sum + rows, kTileRows - rows, 1.0f);
  }

  // Calls use(query tile, key tile) for all of the block, the key tiles in ascending order.
  template <class Use>
  void for_key_tiles(bool values, const Use& use) {
    int64_t first = plan_.key_tiles, end = 0;
    for (int64_t i = 0; i < tiles_; ++i) {
      first = std::min(first, block_[i].first);
      end = std::max(end, block_[i].end);
    }
    for (int64_t run = first / plan_.run_tiles * plan_.run_tiles; run < end;
         run += plan_.run_tiles) {
      pack(run, std::max(run, first), values);
      for (int64_t i = 0; i < tiles_; ++i) {
        QueryTile& tile = block_[i];
        const int64_t last = std::min(tile.end, run + plan_.run_tiles);
        for (int64_t t = std::max(tile.first, run); t < last; ++t) use(tile, t);
      }
    }
  }

  // Packs the key tiles from `first` to the end of the run that starts at tile `run`, unless they
  // are there. A later block needs none before.
  void pack(int64_t run, int64_t first, bool values) {
    if (run_ == run && (has_values_ || !values)) return;
    const int64_t end = std::min(run + plan_.run_tiles, plan_.key_tiles);
    float* const keys = keys_ + key_offset(first - run);
    float* const to = values_ + value_offset(first - run);
    if (in_pairs()) {
      pack_key_pairs(view_, first, end, pack_scratch_, pairs(keys));
      if (values) pack_value_pairs(view_, first, end, pack_scratch_, pairs(to));
    } else if (by_tiles()) {
      for (int64_t tile = first; tile < end; ++tile) {
        pack_tiles(view_, false, tile, tile + 1, pack_scratch_, lines_);
        pack_key_tiles(lines_, head_.head_size, view_.parts.cached,
                       numbers(keys + key_offset(tile - first)));
        if (!values) continue;
        pack_tiles(view_, true, tile, tile + 1, pack_scratch_, lines_);
        pack_value_tiles(lines_, head_.head_size, view_.parts.cached,
                         numbers(to + value_offset(tile - first)));
      }
    } else if (by_int16()) {
      pack_int16_tiles(view_, false, first, end, pack_scratch_, keys);
      if (values) pack_int16_tiles(view_, true, first, end, pack_scratch_, to);
    } else {
      pack_tiles(view_, false, first, end, pack_scratch_, keys);
      if (values) pack_tiles(view_, true, first, end, pack_scratch_, to);
    }
    run_ = run;
    has_values_ = values;
  }
  static uint32_t* pairs(float* packed) { return reinterpret_cast<uint32_t*>(packed); }
  static const uint32_t* pairs(const float* packed) {
    return reinterpret_cast<const uint32_t*>(packed);
  }
  static uint16_t* numbers(float* packed) { return reinterpret_cast<uint16_t*>(packed); }
  static const uint16_t* numbers(const float* packed) {
    return reinterpret_cast<const uint16_t*>(packed);
  }
  static int32_t* integers(float* packed) { return reinterpret_cast<int32_t*>(packed); }
  // Of query rows in integers, behind those of a whole tile
  float* steps(float* strips) const { return strips + kTileRows * head_.head_size / 2; }
  bool in_pairs() const { return view_.products == PromptProducts::kBf16Pairs; }
  bool by_tiles() const { return view_.products == PromptProducts::kTiles; }
  bool by_int16() const { return view_.products == PromptProducts::kInt16; }
  int64_t key_offset(int64_t tiles) const {
    const int64_t size = head_.head_size;
    if (by_tiles()) return tiles * kTileKeys * tile_depth(size) * view_.parts.cached / 2;
    if (by_int16()) return tiles * int16_tile_floats(size);
    return tiles * kTileKeys * (in_pairs() ? key_pairs(size) : key_depth(size));
  }
  int64_t value_offset(int64_t tiles) const {
    const int64_t depth = key_depth(head_.head_size);
    if (by_tiles()) return tiles * kTileKeys * depth * view_.parts.cached / 2;
    if (by_int16()) return tiles * int16_tile_floats(head_.head_size);
    return tiles * kTileKeys * (in_pairs() ? plan_.width / 2 : depth);
  }

  // Softmax weights as pairs, before they are packed: behind the strips, which are half as large.
  uint16_t* rounded() const {
    return reinterpret_cast<uint16_t*>(strips_ + kTileRows * kTileKeys / 2);
  }
  // Scores and maxima of a key tile: of the only tile there is, or of one that is kept.
  int64_t kept(int64_t key_tile) const { return plan_.kept_tiles > 1 ? key_tile : 0; }
  float* scores(int64_t key_tile) const { return scores_ + kept(key_tile) * kTileRows * kTileKeys; }
  float* maxima(int64_t key_tile) const { return maxima_ + kept(key_tile) * kTileRows; }

  TileQueries queries(const QueryTile& tile, float* maximum, float* sum) const {
    return {tile.rows,
            head_.head_size,
            tile.positions,
            tile.strips,
            pairs(tile.strips),
            integers(tile.strips),
            steps(tile.strips),
            maximum,
            sum};
  }

  // exp(score - running maximum) of a key tile, and with `out` its part of the output.
  void weigh(const QueryTile& tile, int64_t key_tile, float* maximum, float* sum, float* out) {
    if (in_pairs()) {
      weigh_pairs(tile, key_tile, maximum, sum, out);
    } else {
      attend_tile(queries(tile, maximum, sum), keys(key_tile, out != nullptr),
                  head_.scores != nullptr, scores(key_tile), out);
    }
    if (head_.scores != nullptr) std::copy_n(maximum, kTileRows, maxima(key_tile));
  }

  TileKeys keys(int64_t key_tile, bool with_values) const {
    const float* const keys = keys_ + key_offset(key_tile - run_);
    const float* const values = with_values ? values_ + value_offset(key_tile - run_) : nullptr;
    const int64_t first_key = key_tile * kTileKeys;
    if (by_tiles()) {
      return {.first_key = first_key,
              .window = view_.window,
              .key_tiles = numbers(keys),
              .value_tiles = numbers(values),
              .parts = view_.parts};
    }
    if (by_int16()) {
      return {
          .first_key = first_key, .window = view_.window, .key_int16 = keys, .value_int16 = values};
    }
    return {.keys = keys, .values = values, .first_key = first_key, .window = view_.window};
  }

  void weigh_pairs(const QueryTile& tile, int64_t key_tile, float* maximum, float* sum,
                   float* out) {
    const Range rows = rows_of(tile, key_tile);
    multiply_bf16_pairs({pairs(tile.strips)}, tile.rows, head_.head_size,
                        pairs(keys_ + key_offset(key_tile - run_)), false, scores(key_tile));
    softmax_pairs({tile.positions, key_tile * kTileKeys, view_.window}, rows.first, rows.end,
                  head_.scores != nullptr, scores(key_tile), rounded(), maximum, sum, factor_);
    if (out == nullptr) return;
    HWY_DYNAMIC_DISPATCH(ScaleRows)(out, rows.first, rows.end, plan_.width, factor_);
    const auto first = static_cast<int64_t>(rows.first);
    const auto count = static_cast<int64_t>(rows.end - rows.first);
    pack_rounded_strips(rounded() + first * kTileKeys, kTileKeys, count, kTileKeys, pairs(strips_));
    const float* values = values_ + value_offset(key_tile - run_);
    for (int64_t c = 0; c < plan_.width; c += kGemmColumns) {
      multiply_bf16_pairs({pairs(strips_)}, count, kTileKeys,
                          pairs(values + c * value_offset(1) / plan_.width), true,
                          out + c * kTileRows + first * kGemmColumns);
    }
  }

  // Adds the block's softmax weights to the scores of their keys, now that the sums are known.
  void add_scores() {
    if (plan_.at_once) {
      const QueryTile& tile = block_[0];
      if (!counts(tile)) return;
      for (int64_t t = tile.first; t < tile.end; ++t) add_columns(tile, t);
      return;
    }
    if (!std::any_of(block_, block_ + tiles_,
                     [&](const QueryTile& tile) { return counts(tile); })) {
      return;
    }
    for (int64_t i = 0; i < tiles_; ++i) start(block_[i].again, sum_, block_[i].rows);
    for_key_tiles(false, [&](const QueryTile& tile, int64_t key_tile) {
      if (!counts(tile)) return;
      weigh(tile, key_tile, tile.again, sum_, nullptr);
      add_columns(tile, key_tile);
    });
  }
  // Whether some row of the tile is in the scores.
  bool counts(const QueryTile& tile) const {
    return tile.positions[tile.rows - 1] >= view_.scored_from;
  }
  void add_columns(const QueryTile& tile, int64_t key_tile) {
    Range rows = rows_of(tile, key_tile);
    const int32_t* const counted =
        std::lower_bound(tile.positions, tile.positions + tile.rows, view_.scored_from);
    rows.first = std::max(rows.first, static_cast<size_t>(counted - tile.positions));
    if (rows.first >= rows.end) return;
    float* const to = head_.scores + key_tile * kTileKeys;
    if (!in_pairs()) {
      add_weights(queries(tile, tile.maximum, tile.sum), maxima(key_tile), scores(key_tile),
                  static_cast<int64_t>(rows.first), static_cast<int64_t>(rows.end), view_.highest,
                  to);
      return;
    }
    HWY_DYNAMIC_DISPATCH(SoftmaxFactors)
    (maxima(key_tile), tile.maximum, tile.sum, static_cast<size_t>(kTileRows), factor_);
    if (view_.highest) {
      HWY_DYNAMIC_DISPATCH(MaxColumns)(scores(key_tile), factor_, rows.first, rows.end, to);
    } else {
      HWY_DYNAMIC_DISPATCH(AddColumns)(scores(key_tile), factor_, rows.first, rows.end, to);
    }
  }

  void store(const QueryTile& tile) const {
    if (in_pairs()) return store_pairs(tile);
    store_tile(view_, tile.first_row, tile.rows, tile.sum, tile.out, tile.strips);
  }
  void store_pairs(const QueryTile& tile) const {
    const size_t element = dtype_bytes(head_.out_dtype);
    for (int64_t i = 0; i < tile.rows; ++i) {
      const int64_t row = tile.first_row + i;
      const int64_t at = row / view_.group * head_.out_stride + row % view_.group * head_.head_size;
      std::byte* out = head_.out + static_cast<size_t>(at) * element;
      for (int64_t c = 0; c < plan_.width; c += kGemmColumns) {
        float* from = tile.out + c * kTileRows + i * kGemmColumns;
        HWY_DYNAMIC_DISPATCH(ScaleRow)
        (from, 1.0f / tile.sum[i], static_cast<size_t>(kGemmColumns), from);
        const int64_t count = std::min(kGemmColumns, head_.head_size - c);
        HWY_DYNAMIC_DISPATCH(StoreRow)
        (head_.out_dtype, from, static_cast<size_t>(count), out + static_cast<size_t>(c) * element);
      }
    }
  }

  const PromptView& view_;
  const HeadView& head_;
  const PromptPlan plan_;
  float *pack_scratch_, *lines_;
  float *keys_, *values_;  // Of tiles from run_ on
  int64_t run_ = -1;
  bool has_values_ = false;
  QueryTile block_[kBlockTilesMax];
  int64_t tiles_ = 0;  // Query tiles of the block
  float *strips_, *scores_, *maxima_, *factor_, *sum_;
};

}  // namespace

size_t prompt_scratch_bytes(int64_t head_size, int64_t keys, bool scored) {
  return static_cast<size_t>(PromptPlan(head_size, keys, scored).floats(head_size)) * sizeof(float);
}

int64_t prompt_keys_at_once(int64_t head_size) {
  constexpr int64_t kAnyMore = kRunTilesMax + 1;
  return PromptPlan(head_size, kAnyMore * kTileKeys, false).run_tiles * kTileKeys;
}

int64_t prompt_block_rows(int64_t head_size, int64_t keys) {
  constexpr int64_t kTilesPerPacking = 8;
  const PromptPlan plan(head_size, keys, false);
  return (plan.at_once ? kTilesPerPacking : plan.block_tiles) * kTileRows;
}

void attend_prompt(const PromptView& view, int64_t first_row, int64_t end_row, float* scratch) {
  std::optional<TilesInUse> tiles;
  if (view.products == PromptProducts::kTiles) tiles.emplace();
  PromptPass pass(view, scratch);
  for (int64_t row = first_row; row < end_row; row += pass.block_rows()) {
    pass.attend(row, std::min(row + pass.block_rows(), end_row));
  }
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
