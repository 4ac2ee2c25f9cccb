// The product of gemm_int8.h for one instruction set. Included once by each file that defines one,
// and empty for all others: inside its namespace and its target attributes, after
// SPILLWAY_INT8_BODIES and these types and functions:
//
//   kLanes, kStripRows, panels_for(rows)                 outputs a vector; tile sizes
//   Ints, Floats, Bytes                                  kLanes of int32, float; 4 kLanes of bytes
//   zero_ints, zero, set, load, store, fma, mul, floats_of(Ints), and from 16 bits in memory widen
//   (float16), widen_bf16
//   load_bytes, low(Bytes), high(Bytes)                  the even and odd nibbles of words
//   Dots                                                 what dot() needs in registers
//   dot(Ints, Dots, Bytes even, Bytes odd, const uint32_t* quads)   += both dot products
//   quantize(const float* group, int count, float* scales, uint32_t* quads)
//                                                        one row's group of 32 or 64 inputs
#ifdef SPILLWAY_INT8_BODIES

constexpr int kVectors = 16 / kLanes;  // Vectors per panel
constexpr int64_t kPanelOutputs = 16;
constexpr int64_t kTilePanels = kGemmColumns / kPanelOutputs;
template <Format kOf>
constexpr auto kGroupWords = static_cast<int>(QuantTraits<kOf>::kWords);
template <Format kOf>
constexpr int64_t kGroupQuads = QuantTraits<kOf>::kGroup / 4;

template <Format kOf>
inline void prefetch_group(const PanelGroup<kOf>* group) {
  // Weights are read once, from memory; see gemm_inl.h. A whole group's lines of several panels at
  // once would fill the first-level cache's miss buffers, so they go into the second level.
  constexpr size_t kAhead = 2048;
  const auto* at = reinterpret_cast<const char*>(group) + kAhead;
  for (size_t i = 0; i < sizeof(PanelGroup<kOf>); i += 64) __builtin_prefetch(at + i, 0, 2);
}

// `sum` plus the result of a group.
inline Floats finish(Ints dots, const float* scales, Floats scale, Floats minimum, Floats sum) {
  const Floats rest = fma(set(scales[1]), minimum, sum);
  return fma(floats_of(dots), mul(set(scales[0]), scale), rest);
}

// c = a . w over all groups for kPanels panels that are `groups` groups apart. Weights are expanded
// in registers, again for each strip: three instructions for two of each row's.
template <Format kOf, int kRows, int kPanels>
void fused_kernel(const Int8Strips& a, const PanelGroup<kOf>* w, int64_t groups, float* c) {
  const Dots dots;
  const uint32_t* quads = a.quads;
  const float* scales = a.scales;
  Floats sums[kRows][kPanels][kVectors];
  for (auto& row : sums) {
    for (auto& panel : row) std::fill(panel, panel + kVectors, zero());
  }
  for (int64_t g = 0; g < groups; ++g, scales += 2 * kRows) {
    Ints ints[kRows][kPanels][kVectors];
    for (auto& row : ints) {
      for (auto& panel : row) std::fill(panel, panel + kVectors, zero_ints());
    }
    for (int p = 0; p < kPanels; ++p) prefetch_group(w + p * groups + g);
#pragma GCC unroll 8
    for (int word = 0; word < kGroupWords<kOf>; ++word, quads += 2 * kRows) {
#pragma GCC unroll 8
      for (int at = 0; at < kPanels * kVectors; ++at) {
        const int p = at / kVectors, v = at % kVectors;
        const Bytes words = load_bytes(w[p * groups + g].words[word] + v * kLanes);
        const Bytes even = low(words), odd = high(words);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          ints[i][p][v] = dot(ints[i][p][v], dots, even, odd, quads + 2 * i);
        }
      }
    }
#pragma GCC unroll 8
    for (int at = 0; at < kPanels * kVectors; ++at) {
      const int p = at / kVectors, v = at % kVectors;
      const Floats scale = widen(w[p * groups + g].scale + v * kLanes);
      const Floats minimum = widen(w[p * groups + g].minimum + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        sums[i][p][v] = finish(ints[i][p][v], scales + 2 * i, scale, minimum, sums[i][p][v]);
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int p = 0; p < kPanels; ++p) {
      for (int v = 0; v < kVectors; ++v) {
        store(c + i * kGemmColumns + p * kPanelOutputs + v * kLanes, sums[i][p][v]);
      }
    }
  }
}

template <Format kOf>
using FusedKernel = void (*)(const Int8Strips&, const PanelGroup<kOf>*, int64_t, float*);

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

template <Format kOf>
void multiply_of(const Int8Strips& a, int64_t rows, int64_t columns, const std::byte* panels,
                 float* c) {
  const auto* w = reinterpret_cast<const PanelGroup<kOf>*>(panels);
  const int64_t groups = int8_scales(kOf, columns) / 2;
  const Strips strips(rows, kStripRows);
  const bool alone = strips.count() == 1;
  const int taken = alone ? kKernels<kOf>.of[rows - 1].alone_panels : 1;
  for (int64_t panel = 0; panel < kTilePanels; panel += taken) {
    for (int64_t s = 0; s < strips.count(); ++s) {
      const int64_t row = strips.first(s);
      const StripKernels<kOf>& kernels = kKernels<kOf>.of[strips.height(s) - 1];
      const FusedKernel<kOf> kernel = alone ? kernels.alone : kernels.beside;
      kernel({a.quads + row * groups * kGroupQuads<kOf>, a.scales + row * groups * 2},
             w + panel * groups, groups, c + row * kGemmColumns + panel * kPanelOutputs);
    }
  }
}

inline void multiply(Format format, const Int8Strips& a, int64_t rows, int64_t columns,
                     const std::byte* panels, float* c) {
  if (format == Format::kQ4_1) return multiply_of<Format::kQ4_1>(a, rows, columns, panels, c);
  multiply_of<Format::kQ4>(a, rows, columns, panels, c);
}

template <Format kOf>
void pack_of(const std::byte* a, DType type, int64_t stride, int64_t height, int64_t columns,
             const Int8Strips& strip) {
  constexpr int64_t kGroup = QuantTraits<kOf>::kGroup;
  const int64_t groups = int8_scales(kOf, columns) / 2;
  for (int64_t row = 0; row < height; ++row) {
    uint32_t* quads = strip.quads + 2 * row;
    float* scales = strip.scales + 2 * row;
    for (int64_t g = 0; g < groups; ++g) {
      alignas(64) float group[kGroup];
      const int64_t count = std::min(kGroup, columns - g * kGroup);
      const int64_t at = row * stride + g * kGroup;
      if (type == DType::kF32) {
        std::memcpy(group, reinterpret_cast<const float*>(a) + at,
                    static_cast<size_t>(count) * sizeof(float));
      } else {
        const auto* from = reinterpret_cast<const uint16_t*>(a) + at;
        if (count == kGroup) {
          for (int64_t i = 0; i < count; i += kLanes) store(group + i, widen_bf16(from + i));
        } else {
          for (int64_t i = 0; i < count; ++i) group[i] = bf16_to_f32(from[i]);
        }
      }
      std::fill(group + count, group + kGroup, 0.0f);
      alignas(64) uint32_t packed[kGroupQuads<kOf>];
      quantize(group, static_cast<int>(kGroup), scales, packed);
      for (int64_t i = 0; i < kGroupWords<kOf>; ++i) {
        std::memcpy(quads + 2 * height * i, packed + 2 * i, 2 * sizeof(uint32_t));
      }
      quads += height * kGroupQuads<kOf>;
      scales += 2 * height;
    }
  }
}

inline void pack(Format format, const std::byte* a, DType type, int64_t stride, int64_t height,
                 int64_t columns, const Int8Strips& strip) {
  if (format == Format::kQ4_1) {
    return pack_of<Format::kQ4_1>(a, type, stride, height, columns, strip);
  }
  pack_of<Format::kQ4>(a, type, stride, height, columns, strip);
}

// The group's scale from the bits of its largest magnitude (which are above infinity's for a NaN),
// and the factor that its inputs are multiplied by.
inline float scale_of(int32_t bits, float* factor) {
  constexpr float kLargest = 127.0f, kNothing = 1e-30f;
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof(magnitude));
  if (magnitude < kNothing) {
    *factor = 0.0f;
    return 0.0f;
  }
  *factor = kLargest / magnitude;
  return magnitude / kLargest;
}

#endif  // SPILLWAY_INT8_BODIES
