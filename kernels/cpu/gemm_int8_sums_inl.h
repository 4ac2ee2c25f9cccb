// The products of bytes of gemm_int8_inl.h, which includes it: a strip of rows by a stretch of
// inputs of some panels, summed in integers and added to outputs.
#ifdef SPILLWAY_INT8_BODIES

// What a strip asks memory for while it is multiplied: of panels that are `apart` bytes apart, from
// `at` on, `step` bytes with each quad. Lines that are asked for twice cost next to nothing.
struct Ahead {
  const std::byte* at = nullptr;  // Null: nothing
  int64_t apart = 0, step = 0;
};

// The part of a strip in the `bytes` of each panel's next stretch. Memory gives little at once, and
// a core waits for all that it asked for: so a few strips share.
inline Ahead part_of(const std::byte* next, int64_t bytes, int64_t apart, int64_t strip,
                     int64_t strips) {
  constexpr int64_t kStripsMax = 4;
  const int64_t parts = std::min(strips, kStripsMax);
  if (strip >= parts) return {};
  return {next + bytes * strip / parts, apart, (bytes / kStretchQuads + parts - 1) / parts};
}

// A strip's rows by a stretch: `count` quads of activations, at least one, and those of panels of
// bytes that are `apart` bytes apart.
struct Operands {
  const uint32_t* quads;  // [quad][row]
  const int32_t* starts;  // Of the rows' sums
  int64_t count;
  const std::byte* w;
  int64_t apart;
  Ahead ahead;
};

// What is done with sums before they are added to outputs, or after: those of expanded panels are
// multiplied by the panels' units, and outputs of weights with one scale a row, as the last stretch
// is added, by that scale.
enum class Factors { kNone, kOfSums, kOfOutputs };

// Where sums are added.
struct Target {
  const float* scales;   // Of rows
  const float* factors;  // Of outputs, of panels that are so many floats apart
  int64_t factors_apart;
  const float* before;  // Outputs until now, `before_stride` floats a row
  int64_t before_stride;
  float* c;  // [row][kGemmColumns]
};

// Outputs before their first stretch.
alignas(64) constexpr float kNoOutputs[kGemmColumns] = {};

// Adds the products of kRows rows and kPanels panels, and asks for what comes next of kAhead
// panels. A row's sums are added to its outputs while the next row is multiplied by the last quad:
// on their way through memory they took 4 % of the time of a loop in the L1 cache.
template <int kRows, int kPanels, int kAhead, Factors kFactors>
__attribute__((noinline)) void multiply_stretch(const Operands& in, const Target& out) {
  static_assert(kTilePanels % kPanels == 0 && kPanels >= kAhead);
  constexpr int kAll = kPanels * kVectors;
  const Dots dots;
  const uint32_t* quads = in.quads;
  const std::byte* w = in.w;
  const int64_t apart = in.apart;
  [[maybe_unused]] const std::byte* asked = in.ahead.at;
  Ints sums[kRows][kAll];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kAll; ++v) sums[i][v] = start(in.starts[i]);
  }
  const auto ask = [&] {
    if constexpr (kAhead > 0) {
#pragma GCC unroll 4
      for (int p = 0; p < kAhead; ++p) __builtin_prefetch(asked + p * in.ahead.apart, 0, 2);
      asked += in.ahead.step;
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
  const float* const scales = out.scales;
  const float* const factors = out.factors;
  const int64_t factors_apart = out.factors_apart;
  const float* before = out.before;
  const int64_t before_stride = out.before_stride;
  float* c = out.c;
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

using MultiplyStretch = void (*)(const Operands&, const Target&);

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

template <Factors kFactors>
MultiplyStretch beside(const Ahead& ahead, int64_t height) {
  return ahead.at == nullptr ? kBeside<0, kFactors>.of[height - 1]
                             : kBeside<kSumPanels, kFactors>.of[height - 1];
}

#endif  // SPILLWAY_INT8_BODIES
