// The product of gemm_int8.h for one instruction set. Included once by each file that defines one,
// and empty for all others: inside its namespace and its target attributes, after
// SPILLWAY_INT8_BODIES and these types and functions:
//
//   kLanes, kStripRows, panels_for(rows), kSumPanels, sum_panels_for(rows)
//                                                        outputs a vector; tile sizes
//   Ints, Floats, Bytes                                  kLanes of int32, float; 4 kLanes of bytes
//   zero_ints, zero, set, load, load_some (at any address), store, fma, sub, mul, floats_of(Ints),
//   as_floats(Ints) (their bits), and from 16 bits in memory widen (float16), widen_bf16
//   load_bytes, store_ints, low(Bytes), high(Bytes)
//                                                        the even and odd nibbles of words
//   Dots                                                 what dot() needs in registers
//   dot(Ints, Dots, Bytes even, Bytes odd, const uint32_t* quads, int apart)
//                                                        += both dot products
//   dot_group<kRows, kVectors, kWords>(Dots, words_at(word, vector), const uint32_t* quads,
//       Ints (*)[kVectors], note)                        = those of a group's words, of each of
//                                                        which note(word) is told; in place of
//                                                        dot() with SPILLWAY_INT8_DOT_GROUP
//   Weights, load_weights(Dots, const std::byte*), start(int32_t), Quad, quad_of(const uint32_t*),
//   product(Ints, Dots, Weights, Quad)                   the same for bytes of weights + 128
//   rename(Ints&)                                        the same for the CPU, new for the compiler
//   quantize(const float* stretch, int group, bool parted, uint32_t* quads, int32_t* sums)
//                                                        one row's stretch; returns s
//   ints_of(Floats), widen_bits(const uint16_t*), any_negative(Ints)
#ifdef SPILLWAY_INT8_BODIES

constexpr int kVectors = 16 / kLanes;  // Vectors per panel
constexpr int64_t kPanelOutputs = 16;
constexpr int64_t kTilePanels = kGemmColumns / kPanelOutputs;
constexpr int64_t kQuadBytes = 4 * kPanelOutputs;  // Of a panel
constexpr int kPair = 2;                           // Panels that are expanded together
constexpr int64_t kStretchQuads = kStretch / 4;
// Sums of a stretch start at the bits of this float, whose last place is 1: those of it plus a sum
// of magnitude below 2^22 are the bits of the float of it plus the sum. So no instruction converts.
constexpr float kFloatStart = 12582912.0f;  // 1.5 * 2^23
constexpr int32_t kFloatBits = 0x4b400000;
static_assert(256 * 127 * 128 < 1 << 22);
template <Format kOf>
constexpr auto kGroupWords = static_cast<int>(QuantTraits<kOf>::kWords);
template <Format kOf>
constexpr int64_t kGroupQuads = int8_group(kOf) / 4;
template <Format kOf>
constexpr int64_t kStretchGroups = kStretch / int8_group(kOf);
template <Format kOf>
constexpr int64_t kStretchScales = int8_stretch_scales(kOf);  // Of a row

// Asks for weights ahead, twice (gemm_inl.h), while a word of a group is multiplied, a line for
// each word and one more: all at once would fill the first-level cache's miss buffers, and loads
// would wait behind them.
template <Format kOf>
inline void prefetch_at_word(const PanelGroup<kOf>* group, int word) {
  constexpr size_t kMemoryAhead = 16384, kLine = 64;
  static_assert(sizeof(PanelGroup<kOf>) == (kGroupWords<kOf> + 1) * kLine);
  const auto ask = [&](int line) __attribute__((always_inline)) {
    const auto* at = reinterpret_cast<const char*>(group) + static_cast<size_t>(line) * kLine;
    __builtin_prefetch(at + kMemoryAhead, 0, 2);
    __builtin_prefetch(at + 2 * sizeof(PanelGroup<kOf>), 0, 3);
  };
  ask(word);
  if (word == 0) ask(kGroupWords<kOf>);
}

#ifdef SPILLWAY_INT8_DOT_GROUP
// The dot products of a group of kPanels panels that are `apart` groups apart.
template <Format kOf, int kRows, int kPanels>
inline void dot_panels(const Dots& dots, const uint32_t* quads, const PanelGroup<kOf>* w,
                       int64_t apart, Ints (&sums)[kRows][kPanels * kVectors]) {
  dot_group<kRows, kPanels * kVectors, kGroupWords<kOf>>(
      dots,
      [&](int word, int at) {
        return w[at / kVectors * apart].words[word] + at % kVectors * kLanes;
      },
      quads, sums,
      [&](int word) {
        // One row goes through its weights so fast that the hardware's prefetcher does better
        // alone.
        if constexpr (kRows == 1) return;
        for (int p = 0; p < kPanels; ++p) prefetch_at_word(w + p * apart, word);
      });
}

// Those of `count` groups. A function of its own: with float sums live beside them, g++ 12 keeps
// some of the loop's sums on the stack.
template <Format kOf, int kRows, int kPanels>
__attribute__((noinline)) void dot_stretch(const uint32_t* quads, const PanelGroup<kOf>* w,
                                           int64_t apart, int64_t count,
                                           Ints (*sums)[kRows][kPanels * kVectors]) {
  const Dots dots;
#pragma GCC unroll 1
  for (int64_t g = 0; g < count; ++g, quads += 2 * kRows * kGroupWords<kOf>) {
    dot_panels<kOf, kRows, kPanels>(dots, quads, w + g, apart, sums[g]);
  }
}
#endif

// c += a . w over `groups` groups, whole stretches or up to the end, for kPanels panels that are
// `apart` groups apart. Weights are expanded in registers, again for each strip: three instructions
// for two of each row's.
template <Format kOf, int kRows, int kPanels>
void fused_kernel(const Int8Strips& a, const PanelGroup<kOf>* w, int64_t apart, int64_t groups,
                  float* c) {
  [[maybe_unused]] const Dots dots;
  const uint32_t* quads = a.quads;
  const float* scales = a.scales;
  for (int64_t first = 0; first < groups; first += kStretchGroups<kOf>) {
    const int64_t end = std::min(groups, first + kStretchGroups<kOf>);
    const float* group_sums = scales + 2 * kRows;
    // sums += what `ints_of_row(i)`, dot products of group g and a vector, are as floats.
    const auto add_group = [&](int64_t g, int p, int v, Floats* sums, const auto& ints_of_row) {
      const Floats scale = widen(w[p * apart + g].scale + v * kLanes);
      const Floats minimum = widen(w[p * apart + g].minimum + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const Floats rest = fma(set(group_sums[(g - first) * kRows + i]), minimum, sums[i]);
        sums[i] = fma(floats_of(ints_of_row(i)), scale, rest);
      }
    };
    const auto add_stretch = [&](int p, int v, const Floats* sums) {
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        float* const to = c + i * kGemmColumns + p * kPanelOutputs + v * kLanes;
        store(to, fma(set(scales[i]), sums[i], load(to)));
      }
    };
    Floats sums[kPanels * kVectors][kRows];
    for (auto& vector : sums) std::fill(vector, vector + kRows, zero());
#ifdef SPILLWAY_INT8_DOT_GROUP
    Ints ints[kStretchGroups<kOf>][kRows][kPanels * kVectors];
    if constexpr (kRows > 1) {
      dot_stretch<kOf, kRows, kPanels>(quads, w + first, apart, end - first, ints);
    }
#pragma GCC unroll 1
    for (int64_t g = first; g < end; ++g, quads += 2 * kRows * kGroupWords<kOf>) {
      auto& of_group = ints[g - first];
      if constexpr (kRows == 1) {
        dot_panels<kOf, kRows, kPanels>(dots, quads, w + g, apart, of_group);
      }
#pragma GCC unroll 4
      for (int at = 0; at < kPanels * kVectors; ++at) {
        add_group(g, at / kVectors, at % kVectors, sums[at],
                  [&](int i) { return of_group[i][at]; });
      }
    }
#else
    for (int64_t g = first; g < end; ++g) {
      Ints ints[kRows][kPanels][kVectors];
      for (auto& row : ints) {
        for (auto& panel : row) std::fill(panel, panel + kVectors, zero_ints());
      }
#pragma GCC unroll 8
      for (int word = 0; word < kGroupWords<kOf>; ++word, quads += 2 * kRows) {
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p) prefetch_at_word(w + p * apart + g, word);
#pragma GCC unroll 8
        for (int at = 0; at < kPanels * kVectors; ++at) {
          const int p = at / kVectors, v = at % kVectors;
          const Bytes words = load_bytes(w[p * apart + g].words[word] + v * kLanes);
          const Bytes even = low(words), odd = high(words);
#pragma GCC unroll 16
          for (int i = 0; i < kRows; ++i) {
            ints[i][p][v] = dot(ints[i][p][v], dots, even, odd, quads + i, kRows);
          }
        }
      }
#pragma GCC unroll 8
      for (int at = 0; at < kPanels * kVectors; ++at) {
        add_group(g, at / kVectors, at % kVectors, sums[at],
                  [&](int i) { return ints[i][at / kVectors][at % kVectors]; });
      }
    }
#endif
    for (int at = 0; at < kPanels * kVectors; ++at) {
      add_stretch(at / kVectors, at % kVectors, sums[at]);
    }
    scales += kRows * kStretchScales<kOf>;
  }
}

template <Format kOf>
using FusedKernel = void (*)(const Int8Strips&, const PanelGroup<kOf>*, int64_t, int64_t, float*);

// Kernels for a tile of one strip, of `alone_panels` panels, and for a strip beside others, of one
// panel, which stays in the L1 cache for all strips.
template <Format kOf>
struct StripKernels {
  FusedKernel<kOf> alone;
  int alone_panels;
  FusedKernel<kOf> beside;
};
template <Format kOf>
constexpr auto kKernels = kernels_by_rows<kStripRows>([](auto rows) {
  constexpr int kRows = decltype(rows)::value, kFew = panels_for(kRows);
  return StripKernels<kOf>{&fused_kernel<kOf, kRows, kFew>, kFew, &fused_kernel<kOf, kRows, 1>};
});

#include "kernels/cpu/gemm_int8_sums_inl.h"

// Vectors as the compiler's own, for arithmetic that every instruction set has.
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Signed = int32_t __attribute__((vector_size(4 * kLanes)));
using Halves = uint16_t __attribute__((vector_size(4 * kLanes)));
using Small = uint8_t __attribute__((vector_size(4 * kLanes)));

// Scales and minima of a panel's stretch as integers, all of one vector of outputs.
template <Format kOf>
struct StretchIntegers {
  Signed s[kStretchGroups<kOf>], z[kStretchGroups<kOf>];
  Floats unit;

  // Finds them, and whether they are integers of few bits.
  inline bool find(const PanelGroup<kOf>* w, int count, int v) {
    constexpr float kPoints = 16777216.0f;  // 2^24: float16's smallest number is the unit.
    constexpr int32_t kLargest = 0x5400;    // 64 in float16: fits a signed word in these units.
    Signed all = Signed{} + (1 << 30);      // A unit even where all are zero
    Signed wrong = Signed{};
    for (int g = 0; g < count; ++g) {
      wrong |= kLargest - ((Signed)widen_bits(w[g].scale + v * kLanes) & 0x7fff);
      wrong |= kLargest - ((Signed)widen_bits(w[g].minimum + v * kLanes) & 0x7fff);
      s[g] = (Signed)ints_of(mul(widen(w[g].scale + v * kLanes), set(kPoints)));
      z[g] = (Signed)ints_of(mul(widen(w[g].minimum + v * kLanes), set(kPoints)));
      all |= s[g] | z[g];
    }
    const Signed lowest = all & -all;
    const Floats power = floats_of((Ints)lowest);
    const Signed shift = ((Signed)power >> 23) - 127;
    unit = mul(power, set(1 / kPoints));
    for (int g = 0; g < count; ++g) {
      s[g] >>= shift;
      z[g] >>= shift;
      wrong |= s[g] | (17 - s[g]) | (z[g] + 128) | (127 - z[g] - ((s[g] << 4) - s[g]));
    }
    return !any_negative((Ints)wrong);
  }
};

// Expands one panel's stretch to bytes; false where it is not made of integers.
template <Format kOf>
inline bool expand_stretch(const PanelGroup<kOf>* w, int count, std::byte* bytes, float* units) {
  for (int v = 0; v < kVectors; ++v) {
    StretchIntegers<kOf> found;
    if (!found.find(w, count, v)) return false;
    store(units + v * kLanes, found.unit);
    std::byte* to = bytes + v * (4 * kLanes);
    for (int g = 0; g < count; ++g) {
      // Two codes of a half word are multiplied at once: their products are below 256.
      const Halves times = (Halves)(found.s[g] | found.s[g] << 16);
      const Small plus = (Small)(((Words)(found.z[g] + 128)) * 0x01010101u);
#pragma GCC unroll 8
      for (int word = 0; word < kGroupWords<kOf>; ++word, to += 2 * kQuadBytes) {
        const Bytes words = load_bytes(w[g].words[word] + v * kLanes);
        store_ints(to, (Ints)((Small)((Halves)low(words) * times) + plus));
        store_ints(to + kQuadBytes, (Ints)((Small)((Halves)high(words) * times) + plus));
      }
    }
  }
  return true;
}

template <Format kOf>
__attribute__((noinline)) void expand_pair(const PanelGroup<kOf>* w, int64_t apart, int count,
                                           ExpandedPair& to) {
  to.integers = true;
  for (int p = 0; to.integers && p < kPair; ++p) {
    to.integers = expand_stretch(w + p * apart, count, to.bytes[p], to.units[p]);
  }
}

// The strips of a block of rows, for kernels.
template <Format kOf>
struct Block {
  const Int8Strips& a;
  const Strips& strips;
  int64_t groups;     // Of all inputs
  int64_t stretches;  // Of all inputs

  // Activations of so many rows, all inputs.
  int64_t quads_of(int64_t rows) const { return rows * groups * kGroupQuads<kOf>; }
  int64_t scales_of(int64_t rows) const { return rows * stretches * kStretchScales<kOf>; }

  // Activations of a strip from a stretch on.
  Int8Strips from(int64_t strip, int64_t stretch) const {
    const int64_t row = strips.first(strip), height = strips.height(strip);
    return {a.quads + quads_of(row) + stretch * kStretchQuads * height,
            a.scales + scales_of(row) + stretch * height * kStretchScales<kOf>};
  }
};

// A strip of a block on its way through the stretches. From call to call pointers are moved, not
// computed: a core begins with the next products only when these are known, and has room for few
// instructions that wait.
struct StripAt {
  const uint32_t* quads;  // Of the next stretch
  const float* scales;
  int64_t quads_step, scales_step;
  float* c;  // Of the panels
  int64_t row, height;
  MultiplyStretch middle, last;  // For all stretches but the last one, and for that
};

// All strips of a block. `asks`: the first ones ask memory for weights.
template <Format kOf>
struct StripsAt {
  static constexpr int64_t kMost = (kGemmRowsMax + kStripRows - 1) / kStripRows;
  StripAt at[kMost];
  int64_t count;

  StripsAt(const Block<kOf>& block, bool asks, float* c) : count(block.strips.count()) {
    constexpr Factors kMiddle = is_grouped(kOf) ? Factors::kOfSums : Factors::kNone;
    constexpr Factors kLast = is_grouped(kOf) ? Factors::kOfSums : Factors::kOfOutputs;
    for (int64_t s = 0; s < count; ++s) {
      const Int8Strips a = block.from(s, 0);
      const int64_t row = block.strips.first(s), height = block.strips.height(s);
      const bool asking = asks && s < kAskingStrips;
      at[s] = {.quads = a.quads,
               .scales = a.scales,
               .quads_step = kStretchQuads * height,
               .scales_step = kStretchScales<kOf> * height,
               .c = c + row * kGemmColumns,
               .row = row,
               .height = height,
               .middle = asking ? kBeside<kSumPanels, kMiddle>.of[height - 1]
                                : kBeside<0, kMiddle>.of[height - 1],
               .last = asking ? kBeside<kSumPanels, kLast>.of[height - 1]
                              : kBeside<0, kLast>.of[height - 1]};
    }
  }
  // To the next stretch.
  void advance() {
    for (int64_t s = 0; s < count; ++s) {
      at[s].quads += at[s].quads_step;
      at[s].scales += at[s].scales_step;
    }
  }
};

// Stretches that a strip is multiplied by before the next strip: its activations lie one behind
// another, and its outputs stay in the L1 cache.
constexpr int kTogether = 4;

// Some stretches of kParts times kSumPanels panels, from the stretch `first` on, and the outputs
// that they are added to: from column `column` on.
template <int kParts>
struct StretchesOfTile {
  StretchPanels panels[kTogether][kParts];
  int64_t first, count;
  bool finishes;  // With the last stretch
  Ahead ahead;
  int64_t column;
};

// Multiplies all strips by some stretches.
template <Format kOf, int kParts>
__attribute__((noinline)) void multiply_strips(StripsAt<kOf>& strips,
                                               const StretchesOfTile<kParts>& tile,
                                               const OutputsAhead& outputs,
                                               const TileTaker& taker) {
  constexpr int64_t kFloats = kSumPanels * kPanelOutputs, kColumns = kParts * kFloats;
  const bool asks_outputs = taker.outputs.first != nullptr;
  const std::byte* strip_ahead = tile.ahead.next;
  for (StripAt *strip = strips.at, *const end = strip + strips.count; strip < end; ++strip) {
    const std::byte* ahead = strip_ahead;
    const uint32_t* quads = strip->quads;
    const float* scales = strip->scales;
    float* const c = strip->c;
    const auto multiply = [&](int64_t i, MultiplyStretch by) __attribute__((always_inline)) {
      if (asks_outputs) {
        outputs.ask(tile.first + i, strip->row, strip->height, tile.column, kColumns);
      }
      const StretchPanels* const panels = tile.panels[i];
      const bool begins = panels->before_stride == 0;
      by(panels[0], quads, scales, ahead, begins ? kNoOutputs : c, c);
      if constexpr (kParts == 2) {
        by(panels[1], quads, scales, ahead + kSumPanels * panels->ahead_apart,
           begins ? kNoOutputs : c + kFloats, c + kFloats);
      }
      quads += strip->quads_step;
      scales += strip->scales_step;
      ahead += kStretchQuads * panels->ahead_step;
    };
    // Without a loop: the branch at its end would be mispredicted, so many branches of the kernels'
    // loops lie between two of it.
    const auto all = [&](auto count) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int i = 0; i + 1 < decltype(count)::value; ++i) multiply(i, strip->middle);
      multiply(decltype(count)::value - 1, tile.finishes ? strip->last : strip->middle);
    };
    static_assert(kTogether == 4);
    if (tile.count == 4) {
      all(std::integral_constant<int, 4>());
    } else if (tile.count == 3) {
      all(std::integral_constant<int, 3>());
    } else if (tile.count == 2) {
      all(std::integral_constant<int, 2>());
    } else {
      all(std::integral_constant<int, 1>());
    }
    strip->quads = quads;
    strip->scales = scales;
    if (tile.finishes) taker.take(strip->row, strip->height, tile.column, kColumns);
    strip_ahead += tile.ahead.strip_bytes;
  }
}

// One stretch of a pair of expanded panels, 8 KiB, from column `column` on. What is expanded next
// is at `next`, null: nothing.
template <Format kOf>
void multiply_expanded(const Block<kOf>& block, StripsAt<kOf>& strips, int64_t stretch,
                       int64_t count, const ExpandedPair& pair, const PanelGroup<kOf>* next,
                       int64_t column, const OutputsAhead& outputs, const TileTaker& taker) {
  constexpr auto kGroupBytes = static_cast<int64_t>(sizeof(PanelGroup<kOf>));
  constexpr int kParts = kPair / kSumPanels;
  StretchesOfTile<kParts> tile;
  tile.first = stretch;
  tile.count = 1;
  tile.finishes = stretch + 1 == block.stretches;
  tile.column = column;
  if (next != nullptr) {
    tile.ahead = Ahead(reinterpret_cast<const std::byte*>(next), kStretchGroups<kOf> * kGroupBytes,
                       1, strips.count);
  }
  for (int part = 0; part < kParts; ++part) {
    tile.panels[0][part] = {.bytes = pair.bytes[part * kSumPanels],
                            .apart = sizeof(pair.bytes[0]),
                            .count = count,
                            .ahead_apart = next == nullptr ? 0 : block.groups * kGroupBytes,
                            .ahead_step = tile.ahead.step,
                            .factors = pair.units[part * kSumPanels],
                            .factors_apart = kPanelOutputs,
                            .before_stride = stretch == 0 ? 0 : kGemmColumns};
  }
  multiply_strips<kOf, kParts>(strips, tile, outputs, taker);
}

// Panels `panel` to `end`, `count` groups from those of a stretch on.
template <Format kOf>
void multiply_fused(const Block<kOf>& block, int64_t stretch, int64_t count,
                    const PanelGroup<kOf>* w, int64_t panel, int64_t end, float* c) {
  const auto& kernels = kKernels<kOf>.of;
  const bool alone = block.strips.count() == 1 && end - panel == kTilePanels;
  const int taken = alone ? kernels[block.strips.height(0) - 1].alone_panels : 1;
  for (; panel < end; panel += taken) {
    for (int64_t s = 0; s < block.strips.count(); ++s) {
      const StripKernels<kOf>& sized = kernels[block.strips.height(s) - 1];
      const FusedKernel<kOf> kernel = alone ? sized.alone : sized.beside;
      kernel(block.from(s, stretch), w + panel * block.groups + stretch * kStretchGroups<kOf>,
             block.groups, count, c + block.strips.first(s) * kGemmColumns + panel * kPanelOutputs);
    }
  }
}

template <Format kOf>
void multiply_of(const Int8Strips& a, int64_t rows, int64_t columns, const Int8Panels& panels,
                 float* c, const TileTaker& taker) {
  const int64_t groups = int8_quads(kOf, columns) / kGroupQuads<kOf>;
  const int64_t stretches = (groups + kStretchGroups<kOf> - 1) / kStretchGroups<kOf>;
  const auto* w = reinterpret_cast<const PanelGroup<kOf>*>(panels.packed);
  const Strips strips(rows, kStripRows);
  const Block<kOf> block{a, strips, groups, stretches};
  const OutputsAhead outputs(taker.outputs, kStripRows, stretches);
  std::fill(c, c + rows * kGemmColumns, 0.0f);
  if (panels.expanded == nullptr) {
    multiply_fused(block, 0, groups, w, 0, kTilePanels, c);
    return taker.take(0, rows, 0, kGemmColumns);
  }
  ExpandedPair* pair = panels.expanded;
  for (int64_t panel = 0; panel < kTilePanels; panel += kPair) {
    StripsAt<kOf> at(block, !panels.filled, c + panel * kPanelOutputs);
    for (int64_t stretch = 0; stretch < stretches; ++stretch) {
      const int64_t first = stretch * kStretchGroups<kOf>;
      const int64_t count = std::min(kStretchGroups<kOf>, groups - first);
      if (!panels.filled) {
        expand_pair(w + panel * groups + first, groups, static_cast<int>(count), *pair);
      }
      if (pair->integers) {
        const PanelGroup<kOf>* next = nullptr;
        if (!panels.filled) {
          next = stretch + 1 < stretches ? w + panel * groups + first + kStretchGroups<kOf>
                                         : w + (panel + kPair) * groups;
        }
        multiply_expanded(block, at, stretch, count * kGroupQuads<kOf>, *pair, next,
                          panel * kPanelOutputs, outputs, taker);
      } else {
        multiply_fused(block, stretch, count, w, panel, panel + kPair, c);
        at.advance();
        if (stretch + 1 == stretches) {
          taker.take(0, rows, panel * kPanelOutputs, kPair * kPanelOutputs);
        }
      }
      if (panels.kept) ++pair;
    }
  }
}

// Multiplies the only strip of a block by a stretch.
inline void multiply_alone(StripAt& strip, const FewRows& kernels, const StretchesOfTile<1>& tile) {
  const StretchPanels& panels = tile.panels[0][0];
  (tile.finishes ? kernels.last : kernels.middle)(
      panels, strip.quads, strip.scales, tile.ahead.next,
      panels.before_stride == 0 ? kNoOutputs : strip.c, strip.c);
  strip.quads += strip.quads_step;
  strip.scales += strip.scales_step;
}

// Weights of 8 bits with one scale a row, which are the bytes of the tile as they are stored.
inline void multiply_q8(const Int8Strips& a, int64_t rows, int64_t columns,
                        const Int8Panels& panels, float* c, const TileTaker& taker) {
  constexpr Format kOf = Format::kQ8;
  constexpr int64_t kStretchBytes = kStretchQuads * kQuadBytes;  // Of a panel
  const int64_t quads = int8_quads(kOf, columns);
  const int64_t stretches = (quads + kStretchQuads - 1) / kStretchQuads;
  const auto apart = static_cast<int64_t>(q8_panel_bytes(columns));
  const Strips strips(rows, kStripRows);
  const Block<kOf> block{a, strips, quads / kGroupQuads<kOf>, stretches};
  const bool alone = strips.count() == 1;
  const FewRows& few = kFewRows.of[strips.height(0) - 1];
  const int taken = alone ? few.panels : kSumPanels;
  const OutputsAhead outputs(taker.outputs, kStripRows, stretches);
  // Few strips wait for memory, and want weights from the L1 cache and early.
  const int64_t together = strips.count() <= kAskingStrips ? 1 : kTogether;
  const int64_t turns = (stretches + together - 1) / together;
  StretchesOfTile<1> tile;
  for (int64_t panel = 0; panel < kTilePanels; panel += taken) {
    const std::byte* const packed = panels.packed + panel * apart;
    const std::byte* const codes = packed + kQ8ScaleBytes;
    StripsAt<kOf> at(block, !panels.filled, c + panel * kPanelOutputs);
    tile.column = panel * kPanelOutputs;
    tile.first = 0;
    for (int64_t turn = 0; turn < turns; ++turn, tile.first += tile.count) {
      // As even as possible: memory is to be asked for as much in each.
      tile.count = (stretches - tile.first) / (turns - turn);
      tile.finishes = turn + 1 == turns;
      tile.ahead.next = codes;
      if (!panels.filled) {
        const int64_t end = tile.first + tile.count, left = turns - turn - 1;
        const std::byte* const next =
            left > 0 ? codes + end * kStretchBytes : codes + taken * apart;
        const int64_t next_count = left > 0 ? (stretches - end) / left : stretches / turns;
        tile.ahead = Ahead(next, next_count * kStretchBytes, tile.count, strips.count());
      }
      for (int64_t i = 0; i < tile.count; ++i) {
        const int64_t stretch = tile.first + i;
        tile.panels[i][0] = {.bytes = codes + stretch * kStretchBytes,
                             .apart = apart,
                             .count = std::min(kStretchQuads, quads - stretch * kStretchQuads),
                             .ahead_apart = panels.filled ? 0 : apart,
                             .ahead_step = tile.ahead.step,
                             .factors = reinterpret_cast<const float*>(packed),
                             .factors_apart = apart / static_cast<int64_t>(sizeof(float)),
                             .before_stride = stretch == 0 ? 0 : kGemmColumns};
      }
      if (alone) {
        multiply_alone(at.at[0], few, tile);
      } else {
        multiply_strips(at, tile, outputs, taker);
      }
    }
    if (alone) taker.take(0, rows, tile.column, taken * kPanelOutputs);
  }
}

inline void multiply(Format format, const Int8Strips& a, int64_t rows, int64_t columns,
                     const Int8Panels& panels, float* c, const TileTaker& taker) {
  if (format == Format::kQ8) return multiply_q8(a, rows, columns, panels, c, taker);
  if (format == Format::kQ4_1) {
    return multiply_of<Format::kQ4_1>(a, rows, columns, panels, c, taker);
  }
  multiply_of<Format::kQ4>(a, rows, columns, panels, c, taker);
}

#include "kernels/cpu/gemm_int8_pack_inl.h"

#endif  // SPILLWAY_INT8_BODIES
