// The product of gemm_int8.h by the matrix units of Intel's server CPUs (AMX), for many rows: an
// instruction multiplies a tile of 16 rows of 64 signed bytes, activations, by one of 64 inputs of
// 16 outputs, unsigned bytes of weights + 128, and adds to 16 x 16 sums of 32 bits. Panels of 8-bit
// weights are such tiles as they are stored, and so are those that are expanded from 4 bits.
//
// Sums of a stretch are the same integers whatever adds them up, and they become float32 by the
// same steps as in gemm_int8_inl.h: a row has the same bits as by vectors. On CPUs without these
// units, tests emulate the instructions (tests/support/amx_emulator.h).
#include "kernels/cpu/gemm_int8.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/strips.h"
#include "kernels/q8_panels.h"
#include "kernels/weight_layout.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")

namespace spillway::cpu {

namespace amx {

constexpr int64_t kPanelOutputs = 16, kTilePanels = kGemmColumns / kPanelOutputs;
constexpr int64_t kPair = 2;        // Panels, and strips, that are multiplied together
constexpr int64_t kStepQuads = 16;  // Of a row of a tile
constexpr int64_t kStretchQuads = kStretch / 4;
constexpr int64_t kLine = 64;  // Bytes of a line of a cache
constexpr int64_t kScalesMax = int8_stretch_scales(Format::kQ4_1);
static_assert(kInt8QuadsMultiple % kStepQuads == 0);
static_assert(kStepQuads * 4 == kAmxRowBytes && kStretchQuads % kStepQuads == 0);

// The start of sums (gemm_int8_inl.h), which is taken off again.
constexpr float kFloatStart = 12582912.0f;

// Tiles 0 to 3 are sums, 4 and 5 activations, of as many rows as strips have; 6 and 7 are weights.
constexpr unsigned kWeightTiles = 1u << 6 | 1u << 7;

// Sums of two strips and two panels, [strip][row][panel][16].
using Sums = int32_t[kPair][kAmxRows][kPair][kPanelOutputs];

// A strip's stretch, and where its outputs go.
struct StripStretch {
  const uint32_t* quads;  // [step][rows][kStepQuads]
  const float* scales;    // Int8Strips::scales
  int64_t rows;
  float* c;
};

// A block of rows, for kernels.
struct Block {
  const Int8Strips& a;
  const Strips strips;
  int64_t row_quads;       // Of all inputs
  int64_t stretches;       // Of all inputs
  int64_t stretch_scales;  // Of a row and stretch

  StripStretch at(int64_t strip, int64_t stretch, float* c) const {
    const int64_t row = strips.first(strip), rows = strips.height(strip);
    return {a.quads + row * row_quads + stretch * kStretchQuads * rows,
            a.scales + (row * stretches + stretch * rows) * stretch_scales, rows,
            c + row * kGemmColumns};
  }
};

struct PanelPair {
  const std::byte* w = nullptr;  // Null: it is left out.
  int64_t apart = 0;             // From one panel to the other
  const float* units = nullptr;  // Of expanded panels, [panel][16]
};
// A stretch of the tile's panels, pair by pair, and what will be read after it: each pair of strips
// asks memory for a part of it, lines of each panel with each step.
struct PanelStretch {
  PanelPair pairs[kTilePanels / kPair];
  int64_t next_apart = 0;  // From one panel to the other
  const std::byte* next = nullptr;
  int64_t ask_lines = 0, ask_bytes = 0;  // A step and panel; a pair of strips and panel

  // `bytes` of each panel
  void ask_for(const std::byte* at, int64_t bytes, int64_t apart, int64_t strips) {
    constexpr int64_t kSteps = kStretchQuads / kStepQuads;
    const int64_t asks = (strips + kPair - 1) / kPair * kSteps;
    next = at;
    next_apart = apart;
    ask_lines = (bytes + asks * kLine - 1) / (asks * kLine);
    ask_bytes = ask_lines * kLine * kSteps;
  }
  // Where a pair of strips and of panels begins to ask
  const std::byte* ask(int64_t pair, int64_t strip_pair) const {
    return next + pair * kPair * next_apart + strip_pair * ask_bytes;
  }
};

// Sums of two strips and two panels whose outputs wait for them.
struct Pending {
  const Sums* sums = nullptr;
  const float* scales[kPair] = {};  // StripStretch::scales
  int64_t rows[kPair] = {};         // The second may be none.
  float* c[kPair] = {};
  const float* units = nullptr;
};

// What expanded panels' sums are in: their value is sum * unit + minus, minus the start.
struct Units {
  __m512 unit0, unit1, minus0, minus1;
};
template <bool kUnits>
inline Units load_units(const float* units) {
  const __m512 minus = _mm512_set1_ps(-kFloatStart);
  if constexpr (!kUnits) {
    return {minus, minus, minus, minus};
  } else {
    const __m512 first = _mm512_load_ps(units), second = _mm512_load_ps(units + kPanelOutputs);
    return {first, second, _mm512_mul_ps(first, minus), _mm512_mul_ps(second, minus)};
  }
}

// Adds sums of a panel to 16 outputs of a row.
template <bool kUnits>
inline __attribute__((always_inline)) void finish_sums(const int32_t* sums, __m512i start,
                                                       __m512 scale, __m512 unit, __m512 minus,
                                                       float* to) {
  const __m512 sum = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_load_si512(sums), start));
  const __m512 value = kUnits ? _mm512_fmadd_ps(sum, unit, minus) : _mm512_add_ps(sum, minus);
  _mm512_store_ps(to, _mm512_fmadd_ps(scale, value, _mm512_load_ps(to)));
}

// Row `i` of a strip of `rows` rows, two panels.
template <bool kUnits>
inline __attribute__((always_inline)) void finish_row(const int32_t (*sums)[kPair][kPanelOutputs],
                                                      const float* scales, int64_t rows,
                                                      const Units& units, float* c, int64_t i) {
  int32_t start;  // Bits of kFloatStart, less what + 128 added to the sum
  std::memcpy(&start, scales + rows + i, sizeof(start));
  const __m512i starts = _mm512_set1_epi32(start);
  const __m512 scale = _mm512_set1_ps(scales[i]);
  float* const to = c + i * kGemmColumns;
  finish_sums<kUnits>(sums[i][0], starts, scale, units.unit0, units.minus0, to);
  finish_sums<kUnits>(sums[i][1], starts, scale, units.unit1, units.minus1, to + kPanelOutputs);
}

template <bool kUnits>
__attribute__((noinline)) void finish_pending(const Pending& pending) {
  const auto units = load_units<kUnits>(pending.units);
  for (int s = 0; s < kPair; ++s) {
    for (int64_t i = 0; i < pending.rows[s]; ++i) {
      finish_row<kUnits>((*pending.sums)[s], pending.scales[s], pending.rows[s], units,
                         pending.c[s], i);
    }
  }
}

constexpr int64_t kSumBytes = sizeof(Sums) / kPair / kAmxRows;  // From row to row

inline void store_sums(Sums& to) {
  _tile_stored(0, to[0][0][0], kSumBytes);
  _tile_stored(1, to[0][0][1], kSumBytes);
  _tile_stored(2, to[1][0][0], kSumBytes);
  _tile_stored(3, to[1][0][1], kSumBytes);
}

// A whole stretch of all pairs of strips by all panels, but for the `first` of these products: what
// tiles have summed, vectors finish while tiles sum the next, so that the last sums stay pending,
// as those of the product before are. `kWhole`: the strips of all pairs have as many rows as a
// tile. Each tile is loaded for two products, and activations come from a near cache for all but
// the first pair of panels. REQUIRES: two strips are pending, whole ones if kWhole.
//
// Vectors keep up with tiles only where nothing waits for memory that was just written in another
// width, and where no branch is guessed wrong: that would wait for, or throw away, all tiles that
// were loaded ahead. So everything is in one function, in plain variables, without loops over rows
// where strips are whole: 1.4 times the rate of two functions that pass structs.
template <bool kUnits, bool kWhole>
__attribute__((noinline)) void multiply_pairs(const Block& block, int64_t stretch,
                                              const PanelStretch& panels, int64_t first, float* c,
                                              Sums* sums, Pending* pending) {
  constexpr int64_t kSteps = kStretchQuads / kStepQuads, kRows = kPair * kAmxRows / kSteps;
  static_assert(kSteps == 2 * kPair && 2 * kRows == kAmxRows);
  constexpr int64_t kPairs = kTilePanels / kPair;
  const int64_t strip_pairs = block.strips.count() / kPair;
  const Sums* last_sums = pending->sums;
  const float *last_scales0 = pending->scales[0], *last_scales1 = pending->scales[1];
  const float* last_units = pending->units;
  int64_t last_rows0 = pending->rows[0], last_rows1 = pending->rows[1];
  float *last_c0 = pending->c[0], *last_c1 = pending->c[1];
  Sums* to = last_sums == sums ? sums + 1 : sums;
  for (int64_t s = 0; s < strip_pairs; ++s) {
    const StripStretch above = block.at(s * kPair, stretch, c);
    const StripStretch below = block.at(s * kPair + 1, stretch, c);
    const int64_t above_step = (kWhole ? kAmxRows : above.rows) * kAmxRowBytes;
    const int64_t below_step = (kWhole ? kAmxRows : below.rows) * kAmxRowBytes;
    const auto* const a = reinterpret_cast<const std::byte*>(above.quads);
    const auto* const b = reinterpret_cast<const std::byte*>(below.quads);
    for (int64_t pair = s == 0 ? first : 0; pair < kPairs; ++pair) {
      const std::byte* const w = panels.pairs[pair].w;
      const std::byte* const beside = w + panels.pairs[pair].apart;
      const std::byte* ask0 = panels.ask(pair, s);
      const std::byte* ask1 = ask0 + panels.next_apart;
      const auto units = load_units<kUnits>(last_units);
      // g++ 12 does not know that loads of tiles read memory.
      asm volatile("" ::: "memory");
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
#pragma GCC unroll 4
      for (int64_t step = 0; step < kSteps; ++step) {
        const int64_t half = step / 2, row = step % 2 * kRows;
        const auto* const from = (*last_sums)[half];
        const float* const scales = half == 0 ? last_scales0 : last_scales1;
        const int64_t rows = half == 0 ? last_rows0 : last_rows1;
        // Whole strips lie one below the other.
        float* const last_c = half == 0 ? last_c0
                              : kWhole  ? last_c0 + kAmxRows * kGemmColumns
                                        : last_c1;
        _tile_loadd(4, a + step * above_step, kAmxRowBytes);
        _tile_loadd(6, w + step * kAmxTileBytes, kAmxRowBytes);
        if constexpr (kWhole) {
          finish_row<kUnits>(from, scales, kAmxRows, units, last_c, row);
          finish_row<kUnits>(from, scales, kAmxRows, units, last_c, row + 1);
        }
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(7, beside + step * kAmxTileBytes, kAmxRowBytes);
        if constexpr (kWhole) {
          finish_row<kUnits>(from, scales, kAmxRows, units, last_c, row + 2);
          finish_row<kUnits>(from, scales, kAmxRows, units, last_c, row + 3);
        }
        _tile_dpbsud(1, 4, 7);
        _tile_loadd(5, b + step * below_step, kAmxRowBytes);
        if constexpr (kWhole) {
          finish_row<kUnits>(from, scales, kAmxRows, units, last_c, row + 4);
          finish_row<kUnits>(from, scales, kAmxRows, units, last_c, row + 5);
        }
        _tile_dpbsud(2, 5, 6);
        if constexpr (kWhole) {
          finish_row<kUnits>(from, scales, kAmxRows, units, last_c, row + 6);
          finish_row<kUnits>(from, scales, kAmxRows, units, last_c, row + 7);
        }
        _tile_dpbsud(3, 5, 7);
        if constexpr (!kWhole) {
          const int64_t end = std::min(rows, row + kRows);
          for (int64_t i = row; i < end; ++i) {
            finish_row<kUnits>(from, scales, rows, units, last_c, i);
          }
        }
        for (int64_t line = 0; line < panels.ask_lines; ++line) {
          __builtin_prefetch(ask0, 0, 2);
          __builtin_prefetch(ask1, 0, 2);
          ask0 += kLine;
          ask1 += kLine;
        }
      }
      store_sums(*to);
      last_sums = to;
      last_scales0 = above.scales;
      last_scales1 = below.scales;
      last_rows0 = above.rows;
      last_rows1 = below.rows;
      last_c0 = above.c + pair * kPair * kPanelOutputs;
      last_c1 = below.c + pair * kPair * kPanelOutputs;
      last_units = panels.pairs[pair].units;
      to = to == sums ? sums + 1 : sums;
    }
  }
  *pending = {.sums = last_sums,
              .scales = {last_scales0, last_scales1},
              .rows = {last_rows0, last_rows1},
              .c = {last_c0, last_c1},
              .units = last_units};
}

// One or two strips, of `steps` tiles of inputs, by a pair of panels.
__attribute__((noinline)) void multiply_pair(const StripStretch* strips, int64_t count,
                                             int64_t steps, const PanelPair& by,
                                             const std::byte* ask, const PanelStretch& panels,
                                             Sums* sums) {
  const std::byte* w = by.w;
  asm volatile("" ::: "memory");
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < steps; ++step, w += kAmxTileBytes) {
    _tile_loadd(4, strips[0].quads + step * strips[0].rows * kStepQuads, kAmxRowBytes);
    _tile_loadd(6, w, kAmxRowBytes);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, w + by.apart, kAmxRowBytes);
    _tile_dpbsud(1, 4, 7);
    if (count == kPair) {
      _tile_loadd(5, strips[1].quads + step * strips[1].rows * kStepQuads, kAmxRowBytes);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
    for (int64_t line = 0; line < panels.ask_lines; ++line, ask += kLine) {
      __builtin_prefetch(ask, 0, 2);
      __builtin_prefetch(ask + panels.next_apart, 0, 2);
    }
  }
  store_sums(*sums);
}

// Multiplies stretch after stretch.
template <bool kUnits>
class Multiplier {
 public:
  Multiplier(const Block& block, float* c) : block_(block), c_(c) {}

  void add(int64_t stretch, int64_t steps, const PanelStretch& panels) {
    const int64_t strips = block_.strips.count();
    int64_t strip = 0;
    const bool all = panels.pairs[0].w != nullptr && panels.pairs[1].w != nullptr;
    static_assert(kTilePanels == 2 * kPair);
    if (all && steps * kStepQuads == kStretchQuads && strips >= kPair) {
      int64_t first = 0;
      if (pending_.sums == nullptr) {
        multiply(stretch, steps, panels, 0, 0);
        first = 1;
      }
      strip = strips / kPair * kPair;
      if (block_.strips.height(strip - 1) == kAmxRows) {
        multiply_pairs<kUnits, true>(block_, stretch, panels, first, c_, sums_, &pending_);
      } else {
        multiply_pairs<kUnits, false>(block_, stretch, panels, first, c_, sums_, &pending_);
      }
    }
    for (; strip < strips; strip += kPair) {
      for (int64_t pair = 0; pair < kTilePanels / kPair; ++pair) {
        if (panels.pairs[pair].w == nullptr) continue;
        finish();
        multiply(stretch, steps, panels, strip, pair);
      }
    }
    if (strips % kPair != 0) finish();  // Pairs of strips are finished by the next ones.
  }
  // Finishes the pending sums. Until then they refer to units of panels, which must stay.
  void finish() {
    if (pending_.sums != nullptr) finish_pending<kUnits>(pending_);
    pending_.sums = nullptr;
  }

 private:
  // Two strips, or one, by a pair of panels.
  void multiply(int64_t stretch, int64_t steps, const PanelStretch& panels, int64_t strip,
                int64_t pair) {
    const int64_t strips = block_.strips.count(), count = std::min(kPair, strips - strip);
    pending_ = {.sums = sums_, .units = panels.pairs[pair].units};
    StripStretch of[kPair] = {};
    for (int64_t i = 0; i < count; ++i) {
      of[i] = block_.at(strip + i, stretch, c_ + pair * kPair * kPanelOutputs);
      pending_.scales[i] = of[i].scales;
      pending_.rows[i] = of[i].rows;
      pending_.c[i] = of[i].c;
    }
    multiply_pair(of, count, steps, panels.pairs[pair], panels.ask(pair, strip / kPair), panels,
                  sums_);
  }

  const Block& block_;
  float* const c_;
  alignas(64) Sums sums_[2];
  Pending pending_;
};

inline void multiply_q8(const Block& block, int64_t columns, const Int8Panels& panels, float* c,
                        int64_t rows) {
  const auto apart = static_cast<int64_t>(q8_panel_bytes(columns));
  const std::byte* const codes = panels.packed + kQ8ScaleBytes;
  Multiplier<false> multiplier(block, c);
  for (int64_t stretch = 0; stretch < block.stretches; ++stretch) {
    const int64_t first = stretch * kStretchQuads;
    const int64_t count = std::min(kStretchQuads, block.row_quads - first);
    const std::byte* const w = codes + first * kQ8QuadBytes;
    PanelStretch all;
    for (int64_t panel = 0; panel < kTilePanels; panel += kPair) {
      all.pairs[panel / kPair] = {.w = w + panel * apart, .apart = apart};
    }
    if (!panels.filled) {
      const bool last = stretch + 1 == block.stretches;
      const int64_t bytes = kStretchQuads * kQ8QuadBytes;
      all.ask_for(last ? codes + kTilePanels * apart : w + bytes, bytes, apart,
                  block.strips.count());
    }
    multiplier.add(stretch, count / kStepQuads, all);
  }
  multiplier.finish();
  __m512 scales[kTilePanels];
  for (int64_t panel = 0; panel < kTilePanels; ++panel) {
    scales[panel] = _mm512_loadu_ps(reinterpret_cast<const float*>(panels.packed + panel * apart));
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t panel = 0; panel < kTilePanels; ++panel) {
      float* const at = c + row * kGemmColumns + panel * kPanelOutputs;
      _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), scales[panel]));
    }
  }
}

// A stretch of two panels whose groups are no integers: vectors multiply them as they are stored,
// with strips put together as they take them.
__attribute__((noinline)) void multiply_fused(Format format, const Block& block, int64_t stretch,
                                              int64_t columns, const std::byte* packed,
                                              int64_t panel, float* c) {
  constexpr int64_t kMost = 12;
  SPILLWAY_CHECK(kInt8Vnni.strip_rows <= kMost);
  alignas(64) uint32_t quads[kMost * kStretchQuads];
  alignas(64) float scales[kMost * kScalesMax];
  const int64_t count =
      std::min(kStretchQuads, int8_quads(format, columns) - stretch * kStretchQuads);
  for (int64_t s = 0; s < block.strips.count(); ++s) {
    const StripStretch from = block.at(s, stretch, c);
    const Strips parts(from.rows, kInt8Vnni.strip_rows);
    for (int64_t part = 0; part < parts.count(); ++part) {
      const int64_t first = parts.first(part), rows = parts.height(part);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = first + i;
        for (int64_t k = 0; k < count; ++k) {
          const int64_t step = k / kStepQuads;
          quads[k * rows + i] = from.quads[(step * from.rows + row) * kStepQuads + k % kStepQuads];
        }
        for (int64_t n = 0; n < block.stretch_scales; ++n) {
          scales[n * rows + i] = from.scales[n * from.rows + row];
        }
      }
      kInt8VnniParts.fused(format, {quads, scales}, rows, packed, columns, panel, stretch,
                           from.c + first * kGemmColumns);
    }
  }
}

// Where a stretch of a pair of panels is expanded; null: nowhere.
inline ExpandedPair* expanded_pair(const Int8Panels& panels, int64_t pair, int64_t stretch,
                                   int64_t stretches) {
  if (panels.expanded == nullptr) return nullptr;
  return panels.expanded + (panels.kept ? pair * stretches + stretch : pair);
}

inline void multiply_grouped(Format format, const Block& block, int64_t columns,
                             const Int8Panels& panels, float* c) {
  const auto group_bytes =
      static_cast<int64_t>(format == Format::kQ4_1 ? sizeof(PanelGroup<Format::kQ4_1>)
                                                   : sizeof(PanelGroup<Format::kQ4>));
  const int64_t group = int8_group(format), groups = int8_quads(format, columns) * 4 / group;
  const int64_t stretch_bytes = kStretch / group * group_bytes, apart = groups * group_bytes;
  Multiplier<true> multiplier(block, c);
  for (int64_t stretch = 0; stretch < block.stretches; ++stretch) {
    if (!panels.kept) multiplier.finish();  // Its units are in the way.
    PanelStretch all;
    for (int64_t panel = 0; panel < kTilePanels; panel += kPair) {
      ExpandedPair* const expanded = expanded_pair(panels, panel / kPair, stretch, block.stretches);
      if (expanded != nullptr && !panels.filled) {
        kInt8VnniParts.expand(format, panels.packed, columns, panel, stretch, *expanded);
      }
      if (expanded == nullptr || !expanded->integers) {
        multiplier.finish();
        multiply_fused(format, block, stretch, columns, panels.packed, panel,
                       c + panel * kPanelOutputs);
      } else {
        all.pairs[panel / kPair] = {.w = expanded->bytes[0],
                                    .apart = sizeof(expanded->bytes[0]),
                                    .units = expanded->units[0]};
      }
    }
    if (!panels.filled) {
      const bool last = stretch + 1 == block.stretches;
      all.ask_for(panels.packed + (last ? kTilePanels * apart : (stretch + 1) * stretch_bytes),
                  stretch_bytes, apart, block.strips.count());
    }
    const int64_t quads = std::min(kStretchQuads, block.row_quads - stretch * kStretchQuads);
    multiplier.add(stretch, quads / kStepQuads, all);
  }
  multiplier.finish();
}

void multiply(Format format, const Int8Strips& a, int64_t rows, int64_t columns,
              const Int8Panels& panels, float* c, const TileTaker& taker) {
  const Block block{.a = a,
                    .strips = Strips(rows, kAmxRows),
                    .row_quads = int8_row_quads(kInt8Amx, format, columns),
                    .stretches = (columns + kStretch - 1) / kStretch,
                    .stretch_scales = int8_stretch_scales(format)};
  // Strips are as even as possible: the last ones may be a row shorter, and then a row of zeros or
  // of what lies behind them comes along for nothing.
  _tile_loadconfig(&kTilesByRows<kWeightTiles>[static_cast<size_t>(block.strips.height(0) - 1)]);
  std::fill(c, c + rows * kGemmColumns, 0.0f);
  if (format == Format::kQ8) {
    multiply_q8(block, columns, panels, c, rows);
  } else {
    multiply_grouped(format, block, columns, panels, c);
  }
  _tile_release();
  taker.take(0, rows, 0, kGemmColumns);
}

// Row by row as vectors have it, and put together as tiles, [step of 64 inputs][row][64 bytes].
void pack(Format format, const std::byte* a, DType type, int64_t stride, int64_t height,
          int64_t columns, bool hadamard, const Int8Strips& strip) {
  const auto element = static_cast<int64_t>(dtype_bytes(type));
  const int64_t stretch_scales = int8_stretch_scales(format);
  uint32_t* to = strip.quads;
  float* scales = strip.scales;
  alignas(64) uint32_t quads[kStretchQuads];
  float row_scales[kScalesMax];
  for (int64_t first = 0; first < columns; first += kStretch) {
    const int64_t count = std::min(kStretch, columns - first);
    const int64_t steps = (count + kAmxRowBytes - 1) / kAmxRowBytes;
    std::fill(quads, quads + kStretchQuads, 0u);  // A last half of a step stays so.
    for (int64_t row = 0; row < height; ++row) {
      kInt8Vnni.pack(format, a + (row * stride + first) * element, type, stride, 1, count, hadamard,
                     {quads, row_scales});
      for (int64_t step = 0; step < steps; ++step) {
        std::memcpy(to + (step * height + row) * kStepQuads, quads + step * kStepQuads,
                    static_cast<size_t>(kAmxRowBytes));
      }
      for (int64_t n = 0; n < stretch_scales; ++n) scales[n * height + row] = row_scales[n];
    }
    to += steps * height * kStepQuads;
    scales += stretch_scales * height;
  }
}

}  // namespace amx

const Int8Bodies kInt8Amx = {.strip_rows = kAmxRows,
                             .expand_rows = 1,
                             .pack = &amx::pack,
                             .multiply = &amx::multiply,
                             .quad_multiple = amx::kStepQuads};

}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES

#endif
