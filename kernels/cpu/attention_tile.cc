#include "kernels/cpu/attention_tile.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention_int16.h"
#include "kernels/cpu/attention_pack.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/gemm_int8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_tile.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/attention_block_inl.h"
#include "kernels/cpu/vector_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3
constexpr int64_t kStrip = 8;
static_assert(kBlock == kTileBlock);
#else
constexpr int64_t kStrip = 4;
#endif
constexpr int64_t kLine = kTileLine;
static_assert(kTileQueries % kBlock == 0 && kLine % kStrip == 0 && kTileKeys % kStrip == 0);

// 2^x for x up to 0; 0 below -127; NaN stays. 2^n is put together from the bits of its exponent,
// which the addition of 1.5 * 2^23 rounds x to. The polynomial of 2^f, with 1 for 2^0, has the
// least relative error for f within 0.5 of 0: 9e-8.
HWY_INLINE V exp2_of(V x) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const V lowest = hn::Set(d, -127.0f);
#if HWY_ARCH_X86 && HWY_TARGET < HWY_EMU128
  const V t = hn::Max(lowest, x);  // The second operand if one is NaN
#else
  const V t = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
#endif
  const V round = hn::Set(d, 12582912.0f + 127.0f);
  const V biased = hn::Add(t, round);
  const V f = hn::Sub(t, hn::Sub(biased, round));
  V p = hn::MulAdd(hn::Set(d, 1.32647273e-3f), f, hn::Set(d, 9.67151299e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.55073358e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.40222424e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.93147004e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, biased))));
}

// sums[i][v] += x(k)[i] * y(k)[v] of [first, end): x in lines of 16 floats, one number of each of
// kStrip lines, or kStrip neighbours of one.
template <int kMany>
struct Sums {
  V v[kStrip][kMany];

  HWY_INLINE void add(const float* HWY_RESTRICT x, int64_t apart, const float* HWY_RESTRICT y) {
    V b[kMany];
#pragma GCC unroll 3
    for (int j = 0; j < kMany; ++j) b[j] = hn::LoadU(D(), y + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kStrip; ++i) {
      const V a = hn::Set(D(), x[i * apart]);
#pragma GCC unroll 3
      for (int j = 0; j < kMany; ++j) v[i][j] = hn::MulAdd(a, b[j], v[i][j]);
    }
  }
  HWY_INLINE void store(float* HWY_RESTRICT to) const {
#pragma GCC unroll 8
    for (int i = 0; i < kStrip; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < kMany; ++j) hn::StoreU(v[i][j], D(), to + i * kBlock + j * kLanes);
    }
  }
};

// Scores of a strip of keys.
template <int kMany>
void score_strip(const float* HWY_RESTRICT keys, const float* HWY_RESTRICT queries, int64_t depth,
                 float* HWY_RESTRICT scores) {
  Sums<kMany> sums;
#pragma GCC unroll 8
  for (int i = 0; i < kStrip; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < kMany; ++j) sums.v[i][j] = hn::Zero(D());
  }
  for (int64_t k = 0; k < depth; k += kLine) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < kLine; ++i) {
      sums.add(keys + i, kLine, queries + i * kBlock);
    }
    keys += kTileKeys * kLine;
    queries += kLine * kBlock;
  }
  sums.store(scores);
}

// Outputs of a strip of the head's numbers, plus those of `count` keys. factor: null, or what
// earlier ones are multiplied by.
template <int kMany>
void output_strip(const float* HWY_RESTRICT values, const float* HWY_RESTRICT weights,
                  int64_t count, const float* HWY_RESTRICT factor, float* HWY_RESTRICT out) {
  Sums<kMany> sums;
#pragma GCC unroll 8
  for (int i = 0; i < kStrip; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < kMany; ++j) sums.v[i][j] = hn::LoadU(D(), out + i * kBlock + j * kLanes);
  }
  if (factor != nullptr) {
#pragma GCC unroll 3
    for (int j = 0; j < kMany; ++j) {
      const V f = hn::LoadU(D(), factor + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kStrip; ++i) sums.v[i][j] = hn::Mul(sums.v[i][j], f);
    }
  }
#pragma GCC unroll 4
  for (int64_t key = 0; key < count; ++key) {
    sums.add(values + key * kLine, 1, weights + key * kBlock);
  }
  sums.store(out);
}

// The keys of a tile that some row of a vector sees, [from, to), and of these the keys that all of
// its rows see, [all_from, all_to).
struct Seen {
  int64_t from, to, all_from, all_to;
};

// A block of a tile's query rows and a tile of keys.
class Block {
 public:
  Block(const TileQueries& queries, const TileKeys& keys, int64_t first_row)
      : keys_(keys),
        head_size_(queries.head_size),
        depth_(key_depth(queries.head_size)),
        positions_(queries.positions + first_row),
        maximum_(queries.maximum + first_row),
        sum_(queries.sum + first_row) {
    const int64_t rows = std::min(kBlock, queries.rows - first_row);
    const int64_t vectors = (rows + kLanes - 1) / kLanes;
    const auto in_tile = [&](int64_t key) {
      return std::clamp<int64_t>(key - keys.first_key, 0, kTileKeys);
    };
    for (int64_t v = 0; v < vectors; ++v) {
      const int64_t low = positions_[v * kLanes], high = positions_[(v + 1) * kLanes - 1];
      Seen& seen = seen_[v];
      seen.to = in_tile(high + 1);
      seen.from = keys.window == 0 ? 0 : std::min(seen.to, in_tile(low - keys.window + 1));
      seen.all_from = keys.window == 0 ? 0 : in_tile(high - keys.window + 1);
      seen.all_from = std::clamp(seen.all_from, seen.from, seen.to);
      seen.all_to = std::clamp(in_tile(low + 1), seen.all_from, seen.to);
    }
    // Positions ascend: the vectors that see keys are neighbours.
    while (first_ < vectors && seen_[first_].from == seen_[first_].to) ++first_;
    end_ = first_;
    while (end_ < vectors && seen_[end_].from < seen_[end_].to) ++end_;
  }

  void attend(const float* queries, bool keep, float* weights, float* out) {
    if (first_ == end_) return;
    score(queries, weights);
    const int64_t from = keep ? 0 : seen_[first_].from;
    bool rescales = false;
    for (int64_t v = first_; v < end_; ++v) {
      rescales |= soften(v, from, keep ? kTileKeys : seen_[v].to, weights + v * kLanes);
    }
    if (keys_.values != nullptr) add_values(weights, rescales, out);
  }

#if HWY_TARGET <= HWY_AVX3
  // attend() by matrix units. queries: of the block's first vector.
  void attend_by_tiles(const uint32_t* queries, bool keep, float* weights, float* out) {
    const auto rounded_up = [](int64_t key, int64_t to) { return (key + to - 1) / to * to; };
    const FactorParts parts = keys_.parts;
    for (int64_t v = first_; v < end_; ++v) {
      tile_scores(keys_.key_tiles, queries + v * query_tile_words(head_size_, parts), parts,
                  head_size_, seen_[v].from / kLanes * kLanes, rounded_up(seen_[v].to, kLanes),
                  kBlock, weights + v * kLanes);
    }
    constexpr int64_t kPartWords = kTileKeys / 2 * kLanes;
    HWY_ALIGN uint32_t pairs[2 * kPartWords];
    for (int64_t v = first_; v < end_; ++v) {
      const int64_t from = seen_[v].from / kPairDepth * kPairDepth;
      const int64_t to = rounded_up(seen_[v].to, kPairDepth);
      float* const own = weights + v * kLanes;
      const bool rescales = soften(v, keep ? 0 : from, keep ? kTileKeys : to, own);
      if (keys_.value_tiles == nullptr) continue;
      pack_row_pairs(own + from * kBlock, kBlock, to - from, parts.rows, kPartWords,
                     pairs + from / 2 * kLanes);
      if (rescales) rescale(v, out + v * kLanes);
      tile_outputs(keys_.value_tiles, pairs, parts, head_size_, from, to, kBlock, out + v * kLanes);
    }
  }

  // attend() in 16-bit integers. All vectors take the same keys: a row's sum over the tile is
  // exact, whatever the rows beside it see.
  void attend_by_int16(const int32_t* queries, const float* steps, bool keep, float* weights,
                       float* out) {
    if (first_ == end_) return;
    const int64_t at = first_ * kLanes, vectors = end_ - first_;
    const int64_t from = seen_[first_].from / kStrip * kStrip;
    const int64_t to = (seen_[end_ - 1].to + kStrip - 1) / kStrip * kStrip;
    int16_scores(keys_.key_int16, queries + at, steps + at, head_size_, from, to, vectors,
                 weights + at);
    HWY_ALIGN int32_t pairs[kTileKeys / 2 * kBlock];
    HWY_ALIGN float weight_steps[kBlock];
    bool rescales = false;
    for (int64_t v = first_; v < end_; ++v) {
      float* const own = weights + v * kLanes;
      rescales |= soften(v, keep ? 0 : from, keep ? kTileKeys : to, own);
      if (keys_.value_int16 == nullptr) continue;
      pack_weight_int16(own, keys_.value_int16, head_size_, from, to, pairs + v * kLanes,
                        weight_steps + v * kLanes);
    }
    if (keys_.value_int16 == nullptr) return;
    int16_outputs(keys_.value_int16, pairs + at, weight_steps + at,
                  rescales ? factor_ + at : nullptr, head_size_, from, to, vectors, out + at);
  }
#endif

 private:
  // Calls kernel(std::integral_constant<int, vectors>()).
  template <class Kernel>
  static HWY_INLINE void with_vectors(int64_t vectors, const Kernel& kernel) {
    if (vectors == 3) {
      kernel(std::integral_constant<int, 3>());
    } else if (vectors == 2) {
      kernel(std::integral_constant<int, 2>());
    } else {
      kernel(std::integral_constant<int, 1>());
    }
  }

  void score(const float* queries, float* scores) const {
    const int64_t to = seen_[end_ - 1].to;
    for (int64_t key = seen_[first_].from / kStrip * kStrip; key < to; key += kStrip) {
      int64_t first = first_, end = end_;
      while (seen_[first].to <= key) ++first;
      while (seen_[end - 1].from >= key + kStrip) --end;
      with_vectors(end - first, [&](auto many) {
        score_strip<decltype(many)::value>(keys_.keys + key * kLine, queries + first * kLanes,
                                           depth_, scores + key * kBlock + first * kLanes);
      });
    }
  }

  // Turns a vector's scores of keys [first, end) into 2^(score - maximum), 0 for keys that a row
  // does not see. Whether earlier sums are to be rescaled, by factor_.
  bool soften(int64_t v, int64_t first, int64_t end, float* HWY_RESTRICT scores) {
    const D d;
    const hn::RebindToSigned<D> di;
    const Seen seen = seen_[v];
    const auto position = hn::LoadU(di, positions_ + v * kLanes);
    const auto offset = static_cast<int32_t>(keys_.first_key);
    const auto newest = hn::Sub(position, hn::Set(di, offset));
    const auto before = keys_.window == 0
                            ? hn::Set(di, -1)
                            : hn::Sub(newest, hn::Set(di, static_cast<int32_t>(keys_.window)));
    const auto sees = [&](int64_t key) {
      const auto at = hn::Set(di, static_cast<int32_t>(key));
      return hn::RebindMask(d, hn::AndNot(hn::Gt(at, newest), hn::Gt(at, before)));
    };
    const auto load = [&](int64_t key) { return hn::LoadU(d, scores + key * kBlock); };
    const V none = hn::Set(d, -std::numeric_limits<float>::infinity());
    const V low = hn::LoadU(d, maximum_ + v * kLanes);
    V high = low, other = none;
    const auto raise_some = [&](int64_t from, int64_t to) {
      for (int64_t key = from; key < to; ++key) {
        high = hn::Max(high, hn::IfThenElse(sees(key), load(key), none));
      }
    };
    raise_some(seen.from, seen.all_from);
    int64_t key = seen.all_from;
    for (; key + 2 <= seen.all_to; key += 2) {
      high = hn::Max(high, load(key));
      other = hn::Max(other, load(key + 1));
    }
    for (; key < seen.all_to; ++key) high = hn::Max(high, load(key));
    high = hn::Max(high, other);
    raise_some(seen.all_to, seen.to);

    V total = hn::Zero(d);
    const auto soften_some = [&](int64_t from, int64_t to) {
      for (int64_t at = from; at < to; ++at) {
        const V e = hn::IfThenElseZero(sees(at), exp2_of(hn::Sub(load(at), high)));
        hn::StoreU(e, d, scores + at * kBlock);
        total = hn::Add(total, e);
      }
    };
    const auto clear = [&](int64_t from, int64_t to) {
      for (int64_t at = from; at < to; ++at) hn::StoreU(hn::Zero(d), d, scores + at * kBlock);
    };
    clear(first, seen.from);
    soften_some(seen.from, seen.all_from);
    for (int64_t at = seen.all_from; at < seen.all_to; ++at) {
      const V e = exp2_of(hn::Sub(load(at), high));
      hn::StoreU(e, d, scores + at * kBlock);
      total = hn::Add(total, e);
    }
    soften_some(seen.all_to, seen.to);
    clear(seen.to, end);

    // Equal ones may be -infinity, of a row that has seen no key yet.
    const V one = hn::Set(d, 1.0f);
    const auto same = hn::Eq(low, high);
    const V factor = hn::IfThenElse(same, one, exp2_of(hn::Sub(low, high)));
    hn::StoreU(factor, d, factor_ + v * kLanes);
    hn::StoreU(high, d, maximum_ + v * kLanes);
    const V sum = hn::LoadU(d, sum_ + v * kLanes);
    hn::StoreU(hn::MulAdd(sum, factor, total), d, sum_ + v * kLanes);
    return !hn::AllTrue(d, same);
  }

  void rescale(int64_t v, float* HWY_RESTRICT out) const {
    const V f = hn::LoadU(D(), factor_ + v * kLanes);
    for (int64_t i = 0; i < depth_; ++i) {
      hn::StoreU(hn::Mul(hn::LoadU(D(), out + i * kBlock), f), D(), out + i * kBlock);
    }
  }

  // Adds values times weights to the outputs, in runs of keys that the same vectors see.
  void add_values(const float* weights, bool rescales, float* out) const {
    const float* factor = rescales ? factor_ : nullptr;
    int64_t key = seen_[first_].from;
    for (int64_t first = first_; first < end_; ++first) {
      const int64_t count = seen_[first].to - key;
      if (count == 0) continue;
      const int64_t at = first * kLanes;
      with_vectors(end_ - first, [&](auto many) {
        for (int64_t i = 0; i < depth_; i += kStrip) {
          output_strip<decltype(many)::value>(
              keys_.values + (i / kLine * kTileKeys + key) * kLine + i % kLine,
              weights + key * kBlock + at, count, factor == nullptr ? nullptr : factor + at,
              out + i * kBlock + at);
        }
      });
      key += count;
      factor = nullptr;
    }
  }

  const TileKeys& keys_;
  const int64_t head_size_, depth_;
  const int32_t* const positions_;
  float* const maximum_;
  float* const sum_;
  Seen seen_[kVectors];
  int64_t first_ = 0, end_ = 0;  // The vectors that see keys
  HWY_ALIGN float factor_[kBlock];
};

void AttendTile(const TileQueries& queries, const TileKeys& keys, bool keep, float* weights,
                float* out) {
  const int64_t depth = key_depth(queries.head_size);
  for (int64_t row = 0; row < queries.rows; row += kBlock) {
    Block block(queries, keys, row);
    float* const own = weights + (keep ? row * kTileKeys : 0);
#if HWY_TARGET <= HWY_AVX3
    if (keys.key_tiles != nullptr) {
      const int64_t words = query_tile_words(queries.head_size, keys.parts);
      block.attend_by_tiles(queries.tiles + row / kLanes * words, keep, own, out + row * depth);
      continue;
    }
    if (keys.key_int16 != nullptr) {
      block.attend_by_int16(queries.int16 + row * depth / 2, queries.steps + row, keep, own,
                            out + row * depth);
      continue;
    }
#endif
    block.attend(queries.packed + row * depth, keep, own, out + row * depth);
  }
}

bool HasWidestVectors() {
  return HWY_TARGET <= HWY_AVX3;
}

void AddWeights(const TileQueries& queries, const float* maxima, const float* weights,
                int64_t first, int64_t end, bool highest, float* scores) {
  const D d;
  HWY_ALIGN float factor[kBlock];
  HWY_ALIGN float rows[kBlock * kLine];
  for (int64_t block = first / kBlock * kBlock; block < end; block += kBlock) {
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const V now = hn::LoadU(d, queries.maximum + block + i);
      const V e = exp2_of(hn::Sub(hn::LoadU(d, maxima + block + i), now));
      hn::Store(hn::Div(e, hn::LoadU(d, queries.sum + block + i)), d, factor + i);
    }
    const int64_t from = std::max(first, block), to = std::min(end, block + kBlock);
    for (int64_t key = 0; key < kTileKeys; key += kLine) {
      pack_strip(weights + block * kTileKeys + key * kBlock, kBlock, kLine, kBlock, rows);
      for (int64_t j = 0; j < kLine; j += kLanes) {
        V all = hn::LoadU(d, scores + key + j);
        for (int64_t row = from - block; row < to - block; ++row) {
          const V f = hn::Set(d, factor[row]), w = hn::Load(d, rows + row * kLine + j);
          all = highest ? hn::Max(all, hn::Mul(f, w)) : hn::MulAdd(f, w, all);
        }
        hn::StoreU(all, d, scores + key + j);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {

HWY_EXPORT(HasWidestVectors);
HWY_EXPORT(AttendTile);
HWY_EXPORT(AddWeights);

bool attends_by_tiles() {
  return has_amx_bf16() && has_bf16_dot() && HWY_DYNAMIC_DISPATCH(HasWidestVectors)();
}

bool attends_by_int16() {
  return has_avx512_vnni() && HWY_DYNAMIC_DISPATCH(HasWidestVectors)();
}

void attend_tile(const TileQueries& queries, const TileKeys& keys, bool keep, float* weights,
                 float* out) {
  HWY_DYNAMIC_DISPATCH(AttendTile)(queries, keys, keep, weights, out);
}

void add_weights(const TileQueries& queries, const float* maxima, const float* weights,
                 int64_t first, int64_t end, bool highest, float* scores) {
  HWY_DYNAMIC_DISPATCH(AddWeights)
  (queries, maxima, weights, first, end, highest, scores);
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
