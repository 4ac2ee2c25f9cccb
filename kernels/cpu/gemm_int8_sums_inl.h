// The products of bytes of gemm_int8_inl.h, which includes it: a strip of rows by a stretch of
// inputs of some panels, summed in integers and added to outputs.
#ifdef SPILLWAY_INT8_BODIES

// What the strips of a block ask memory for while they are multiplied by some stretches: the next
// `bytes` of each panel. Memory gives little at once, and a core waits for all that it asked for:
// so the first few strips share, each `step` bytes with each quad. Lines that are asked for twice
// cost next to nothing.
constexpr int64_t kAskingStrips = 4;
struct Ahead {
  const std::byte* next = nullptr;  // Of the first panel
  int64_t strip_bytes = 0, step = 0;

  Ahead() = default;
  Ahead(const std::byte* from, int64_t bytes, int64_t stretches, int64_t strips)
      : next(from), strip_bytes(bytes / std::min(strips, kAskingStrips)) {
    const int64_t quads = stretches * kStretchQuads;
    step = (strip_bytes + quads - 1) / quads;
  }
};

// What is done with sums before they are added to outputs, or after: those of expanded panels are
// multiplied by the panels' units, and outputs of weights with one scale a row, as the last stretch
// is added, by that scale.
enum class Factors { kNone, kOfSums, kOfOutputs };

// Some panels of a stretch of inputs, as all strips are multiplied by them.
struct StretchPanels {
  const std::byte* bytes;  // Of the first; the next one is `apart` bytes on
  int64_t apart;
  int64_t count;                    // Of quads, at least one
  int64_t ahead_apart, ahead_step;  // Of what is asked for: from panel to panel, with each quad
  const float* factors;  // Of outputs; those of the next panel are `factors_apart` floats on
  int64_t factors_apart;
  int64_t before_stride;  // Floats from row to row of the outputs until now
};

// Outputs before their first stretch.
alignas(64) constexpr float kNoOutputs[kGemmColumns] = {};

// Weights from memory are asked for twice (gemm_inl.h): into the L2 cache a stretch before their
// turn, and from there into the L1 cache so many bytes before it, 24 quads, or as far into what
// follows the panel. (Where a strip before has brought them there, asking again costs nothing: 48
// to 512 rows are as fast with it as without.)
constexpr int64_t kNearBytes = 1536;

// c[row][kGemmColumns] = before + the products of kRows rows, whose activations are
// quads[quad][row], and kPanels panels; asks for what comes next of kAhead panels, from `ahead` on.
// A row's sums are added to its outputs while the next row is multiplied by the last quad: on their
// way through memory they took 4 % of the time of a loop in the L1 cache.
//
// A strip's own pointers come in registers: from a struct a core has them 5 cycles later, and where
// it began late with the next strip's first product, 22 of 800 cycles were lost.
template <int kRows, int kPanels, int kAhead, Factors kFactors>
__attribute__((noinline)) void multiply_stretch(const StretchPanels& in, const uint32_t* quads,
                                                const float* scales, const std::byte* ahead,
                                                const float* before, float* c) {
  static_assert(kTilePanels % kPanels == 0 && kPanels >= kAhead);
  constexpr int kAll = kPanels * kVectors;
  const Dots dots;
  const std::byte* w = in.bytes;
  const int64_t apart = in.apart;
  // (Expanded panels are in the caches.)
  constexpr bool kAsksNear = kAhead > 0 && kFactors != Factors::kOfSums;
  [[maybe_unused]] const std::byte* asked = ahead;
  const auto* const starts = reinterpret_cast<const int32_t*>(scales + kRows);
  Ints sums[kRows][kAll];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kAll; ++v) sums[i][v] = start(starts[i]);
  }
  const auto ask = [&]() __attribute__((always_inline)) {
    if constexpr (kAhead > 0) {
#pragma GCC unroll 4
      for (int p = 0; p < kAhead; ++p) __builtin_prefetch(asked + p * in.ahead_apart, 0, 2);
      asked += in.ahead_step;
    }
    if constexpr (kAsksNear) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) __builtin_prefetch(w + p * apart + kNearBytes, 0, 3);
    }
  };
#pragma GCC unroll 1
  for (int64_t k = 1; k < in.count; ++k, quads += kRows, w += kQuadBytes) {
    ask();
    Weights weights[kAll];
#pragma GCC unroll 8
    for (int v = 0; v < kAll; ++v) {
      weights[v] = load_weights(dots, w + v / kVectors * apart + v % kVectors * (4 * kLanes));
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Quad quad = quad_of(quads + i);
#pragma GCC unroll 4
      for (int v = 0; v < kAll; ++v) sums[i][v] = product(sums[i][v], dots, weights[v], quad);
    }
  }
  ask();
  // Otherwise g++ 12 would keep what the loop and what follows it call sums in registers of their
  // own, and half of them on the stack.
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kAll; ++v) rename(sums[i][v]);
  }
  Weights weights[kAll];
#pragma GCC unroll 8
  for (int v = 0; v < kAll; ++v) {
    weights[v] = load_weights(dots, w + v / kVectors * apart + v % kVectors * (4 * kLanes));
  }
  const float* const factors = in.factors;
  const int64_t factors_apart = in.factors_apart;
  const int64_t before_stride = in.before_stride;
#pragma GCC unroll 16
  for (int i = 0; i <= kRows; ++i) {
    if (i < kRows) {
      const Quad quad = quad_of(quads + i);
#pragma GCC unroll 4
      for (int v = 0; v < kAll; ++v) sums[i][v] = product(sums[i][v], dots, weights[v], quad);
    }
    if (i == 0) continue;
    const Floats scale = set(scales[i - 1]);
#pragma GCC unroll 4
    for (int v = 0; v < kAll; ++v) {
      const auto factor = [&] {
        return load_some(factors + v / kVectors * factors_apart + v % kVectors * kLanes);
      };
      Floats sum = sub(as_floats(sums[i - 1][v]), set(kFloatStart));
      if constexpr (kFactors == Factors::kOfSums) sum = mul(sum, factor());
      Floats output = fma(scale, sum, load(before + v * kLanes));
      if constexpr (kFactors == Factors::kOfOutputs) output = mul(output, factor());
      store(c + v * kLanes, output);
    }
    before += before_stride;
    c += kGemmColumns;
    asm volatile("" ::: "memory");  // Not earlier: registers are needed for sums.
  }
}

using MultiplyStretch = void (*)(const StretchPanels&, const uint32_t* quads, const float* scales,
                                 const std::byte* ahead, const float* before, float* c);

// For a strip beside others.
template <int kAhead, Factors kFactors>
constexpr auto kBeside = kernels_by_rows<kStripRows>([](auto rows) -> MultiplyStretch {
  return &multiply_stretch<decltype(rows)::value, kSumPanels, kAhead, kFactors>;
});
static_assert(kPair % kSumPanels == 0);

// For a strip that is alone, as many panels as there are registers for.
struct FewRows {
  MultiplyStretch middle, last;
  int panels;
};
constexpr auto kFewRows = kernels_by_rows<kStripRows>([](auto rows) {
  constexpr int kRows = decltype(rows)::value, kPanels = sum_panels_for(kRows);
  return FewRows{&multiply_stretch<kRows, kPanels, kPanels, Factors::kNone>,
                 &multiply_stretch<kRows, kPanels, kPanels, Factors::kOfOutputs>, kPanels};
});

#endif  // SPILLWAY_INT8_BODIES
