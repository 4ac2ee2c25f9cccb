// The product of gemm_int8.h by the matrix units of Intel's server CPUs (AMX), for many rows: an
// instruction multiplies a tile of 16 rows of 64 signed bytes, activations, by one of 64 inputs of
// 16 outputs, unsigned bytes of weights + 128, and adds to 16 x 16 sums of 32 bits. Panels of 8-bit
// weights are such tiles as they are stored, and so are those that are expanded from 4 bits.
//
// Sums of a stretch are the same integers whatever adds them up, and they become float32 by the
// same steps as in gemm_int8_inl.h: a row has the same bits as by vectors. Its speed has not been
// measured: it was written on a machine without these units, and tests emulate the instructions
// (tests/support/amx_emulator.h).
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
constexpr int64_t kStepBytes = kAmxRows * kAmxRowBytes;  // A panel's tile
constexpr int64_t kStretchQuads = kStretch / 4;
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

// What memory is asked for while strips are multiplied: of two panels that are `apart` bytes apart,
// from `at` on, `step` bytes for each tile of theirs.
struct Ahead {
  const std::byte* at = nullptr;  // Null: nothing
  int64_t apart = 0, step = 0;
};

// The part of a pair of strips in the `bytes` of each panel's next stretch.
inline Ahead part_of(const std::byte* next, int64_t bytes, int64_t apart, int64_t part,
                     int64_t parts) {
  constexpr int64_t kSteps = kStretchQuads / kStepQuads;
  const int64_t share = (bytes + parts - 1) / parts;
  return {next + share * part, apart, (share + kSteps - 1) / kSteps};
}

inline void prefetch(Ahead* ahead) {
  constexpr int64_t kLine = 64;
  for (int64_t line = 0; line < ahead->step; line += kLine) {
    __builtin_prefetch(ahead->at + line, 0, 2);
    __builtin_prefetch(ahead->at + ahead->apart + line, 0, 2);
  }
  ahead->at += ahead->step;
}

// Sums of a stretch of `steps` tiles of inputs: of one or two strips and two panels that are
// `apart` bytes apart. With two, each tile is loaded for two products.
template <int kStrips>
inline void sum_stretch(const StripStretch* strips, int64_t steps, const std::byte* w,
                        int64_t apart, Ahead ahead, Sums& to) {
  constexpr int64_t kSumBytes = sizeof(Sums) / kPair / kAmxRows;  // From row to row
  // g++ 12 does not know that loads of tiles read memory.
  asm volatile("" ::: "memory");
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kStrips == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; ++step, w += kStepBytes) {
    _tile_loadd(4, strips[0].quads + step * strips[0].rows * kStepQuads, kAmxRowBytes);
    _tile_loadd(6, w, kAmxRowBytes);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, w + apart, kAmxRowBytes);
    _tile_dpbsud(1, 4, 7);
    if constexpr (kStrips == 2) {
      _tile_loadd(5, strips[1].quads + step * strips[1].rows * kStepQuads, kAmxRowBytes);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
    if (ahead.at != nullptr) prefetch(&ahead);
  }
  _tile_stored(0, to[0][0][0], kSumBytes);
  _tile_stored(1, to[0][0][1], kSumBytes);
  if constexpr (kStrips == 2) {
    _tile_stored(2, to[1][0][0], kSumBytes);
    _tile_stored(3, to[1][0][1], kSumBytes);
  }
}

// What becomes of sums: added to the outputs of their strips, or stored there.
struct Finish {
  const Sums* sums = nullptr;
  StripStretch strips[kPair] = {};
  int64_t count = 0;                         // Of strips
  const float (*units)[kPanelOutputs] = {};  // Of expanded panels
  bool first = false;                        // There is nothing to add to yet.
  const float* column_scales[kPair] = {};    // After the last stretch, or null
};

inline void finish(const Finish& how) {
  __m512 unit[kPair], minus[kPair], columns[kPair];
  for (int p = 0; p < kPair; ++p) {
    unit[p] = how.units == nullptr ? _mm512_set1_ps(1.0f) : _mm512_load_ps(how.units[p]);
    minus[p] = _mm512_mul_ps(unit[p], _mm512_set1_ps(-kFloatStart));
    columns[p] = how.column_scales[p] == nullptr ? _mm512_setzero_ps()
                                                 : _mm512_loadu_ps(how.column_scales[p]);
  }
  const bool last = how.column_scales[0] != nullptr;
  for (int64_t s = 0; s < how.count; ++s) {
    const StripStretch& strip = how.strips[s];
    for (int64_t i = 0; i < strip.rows; ++i) {
      int32_t start;  // Bits of kFloatStart, less what + 128 added to the sum
      std::memcpy(&start, strip.scales + strip.rows + i, sizeof(start));
      const __m512 scale = _mm512_set1_ps(strip.scales[i]);
      for (int p = 0; p < kPair; ++p) {
        float* const to = strip.c + i * kGemmColumns + p * kPanelOutputs;
        const __m512 sum = _mm512_castsi512_ps(
            _mm512_add_epi32(_mm512_load_si512((*how.sums)[s][i][p]), _mm512_set1_epi32(start)));
        const __m512 value = _mm512_fmadd_ps(sum, unit[p], minus[p]);
        const __m512 before = how.first ? _mm512_setzero_ps() : _mm512_load_ps(to);
        __m512 all = _mm512_fmadd_ps(scale, value, before);
        if (last) all = _mm512_mul_ps(all, columns[p]);
        _mm512_store_ps(to, all);
      }
    }
  }
}

// Sums of one pair of strips after another. Vectors finish those of one while tiles sum the next.
class SumQueue {
 public:
  // `how` says all but the sums.
  void add(Finish how, int64_t steps, const std::byte* w, int64_t apart, Ahead ahead) {
    Sums& sums = sums_[next_];
    if (how.count == 2) {
      sum_stretch<2>(how.strips, steps, w, apart, ahead, sums);
    } else {
      sum_stretch<1>(how.strips, steps, w, apart, ahead, sums);
    }
    how.sums = &sums;
    next_ = 1 - next_;
    finish_last();
    last_ = how;
  }
  void finish_last() {
    if (last_.sums != nullptr) finish(last_);
    last_.sums = nullptr;
  }

 private:
  alignas(64) Sums sums_[2];
  int next_ = 0;
  Finish last_;
};

// A stretch of two panels of bytes times all strips. `next`, of `next_bytes` for each panel, is
// what will be read after it; null: nothing.
struct PanelPair {
  const std::byte* w;
  int64_t apart;
  const std::byte* next;
  int64_t next_bytes, next_apart;
};
inline void multiply_pair(const Block& block, int64_t stretch, int64_t steps, const PanelPair& pair,
                          Finish how, float* c, SumQueue* queue) {
  const int64_t strips = block.strips.count(), parts = (strips + kPair - 1) / kPair;
  for (int64_t s = 0; s < strips; s += kPair) {
    how.count = std::min(kPair, strips - s);
    for (int64_t i = 0; i < how.count; ++i) how.strips[i] = block.at(s + i, stretch, c);
    Ahead ahead;
    if (pair.next != nullptr) {
      ahead = part_of(pair.next, pair.next_bytes, pair.next_apart, s / kPair, parts);
    }
    queue->add(how, steps, pair.w, pair.apart, ahead);
  }
}

inline void multiply_q8(const Block& block, int64_t columns, const Int8Panels& panels, float* c) {
  const auto apart = static_cast<int64_t>(q8_panel_bytes(columns));
  const std::byte* const codes = panels.packed + kQ8ScaleBytes;
  SumQueue queue;
  for (int64_t panel = 0; panel < kTilePanels; panel += kPair) {
    for (int64_t stretch = 0; stretch < block.stretches; ++stretch) {
      const int64_t first = stretch * kStretchQuads;
      const int64_t count = std::min(kStretchQuads, block.row_quads - first);
      const bool last = stretch + 1 == block.stretches;
      PanelPair pair{};
      pair.w = codes + panel * apart + first * kQ8QuadBytes;
      pair.apart = apart;
      if (!panels.filled) {
        pair.next = last ? codes + (panel + kPair) * apart : pair.w + kStretchQuads * kQ8QuadBytes;
        pair.next_bytes = kStretchQuads * kQ8QuadBytes;
        pair.next_apart = apart;
      }
      Finish how;
      how.first = stretch == 0;
      for (int64_t p = 0; last && p < kPair; ++p) {
        how.column_scales[p] = reinterpret_cast<const float*>(panels.packed + (panel + p) * apart);
      }
      multiply_pair(block, stretch, count / kStepQuads, pair, how, c + panel * kPanelOutputs,
                    &queue);
    }
  }
  queue.finish_last();
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

inline void multiply_grouped(Format format, const Block& block, int64_t columns,
                             const Int8Panels& panels, float* c, int64_t rows) {
  const auto group_bytes =
      static_cast<int64_t>(format == Format::kQ4_1 ? sizeof(PanelGroup<Format::kQ4_1>)
                                                   : sizeof(PanelGroup<Format::kQ4>));
  const int64_t group = int8_group(format), groups = int8_quads(format, columns) * 4 / group;
  const int64_t stretch_bytes = kStretch / group * group_bytes, apart = groups * group_bytes;
  std::fill(c, c + rows * kGemmColumns, 0.0f);
  SumQueue queue;
  ExpandedPair* expanded = panels.expanded;
  for (int64_t panel = 0; panel < kTilePanels; panel += kPair) {
    for (int64_t stretch = 0; stretch < block.stretches; ++stretch) {
      float* const to = c + panel * kPanelOutputs;
      if (expanded != nullptr && !panels.filled) {
        queue.finish_last();  // Its units may be in the way.
        kInt8VnniParts.expand(format, panels.packed, columns, panel, stretch, *expanded);
      }
      if (expanded == nullptr || !expanded->integers) {
        queue.finish_last();
        multiply_fused(format, block, stretch, columns, panels.packed, panel, to);
      } else {
        const int64_t quads = std::min(kStretchQuads, block.row_quads - stretch * kStretchQuads);
        PanelPair pair{};
        pair.w = expanded->bytes[0];
        pair.apart = sizeof(expanded->bytes[0]);
        if (!panels.filled) {
          const bool last = stretch + 1 == block.stretches;
          pair.next = panels.packed + (last ? (panel + kPair) * apart
                                            : panel * apart + (stretch + 1) * stretch_bytes);
          pair.next_bytes = stretch_bytes;
          pair.next_apart = apart;
        }
        Finish how;
        how.units = expanded->units;
        multiply_pair(block, stretch, quads / kStepQuads, pair, how, to, &queue);
      }
      if (expanded != nullptr && panels.kept) ++expanded;
    }
  }
  queue.finish_last();
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
  if (format == Format::kQ8) {
    multiply_q8(block, columns, panels, c);
  } else {
    multiply_grouped(format, block, columns, panels, c, rows);
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
