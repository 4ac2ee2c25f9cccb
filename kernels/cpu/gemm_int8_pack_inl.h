// Packing of activations for the product of gemm_int8_inl.h, which includes it: of what stands
// there at the top, kLanes, kStripRows, store, load_some, widen_bf16 and quantize.
#ifdef SPILLWAY_INT8_BODIES

// Asks for the cache line that is as far ahead as the next row. (The last row's is not used.)
inline void ask_for_next(const void* at, int64_t row_bytes) {
  __builtin_prefetch(static_cast<const std::byte*>(at) + row_bytes, 0, 3);
}

// A row's stretch of `count` inputs as float32, padded with zeros: where it lies, or in `numbers`.
// The next row lies `stride` elements further.
inline const float* read_stretch(const std::byte* a, DType type, int64_t at, int64_t count,
                                 int64_t stride, bool hadamard, float* numbers) {
  if (type == DType::kF32) {
    const float* const from = reinterpret_cast<const float*>(a) + at;
    if (count == kStretch && !hadamard) return from;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      ask_for_next(from + i, stride * static_cast<int64_t>(sizeof(float)));
      store(numbers + i, load_some(from + i));
    }
    for (; i < count; ++i) numbers[i] = from[i];
  } else {
    const auto* from = reinterpret_cast<const uint16_t*>(a) + at;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      ask_for_next(from + i, stride * static_cast<int64_t>(sizeof(uint16_t)));
      store(numbers + i, widen_bf16(from + i));
    }
    for (; i < count; ++i) numbers[i] = bf16_to_f32(from[i]);
  }
  std::fill(numbers + count, numbers + kStretch, 0.0f);
  if (hadamard) multiply_by_hadamard(HadamardOf::kInputs, count, numbers);
  return numbers;
}

// Puts the quads of rows side by side: to[k][rows] from[rows][kStretchQuads]. REQUIRES: `count` is
// a multiple of four.
inline void interleave(const uint32_t* from, int64_t rows, int64_t count, uint32_t* to) {
  if (rows == 1) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(uint32_t));
    return;
  }
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4, from += 4 * kStretchQuads) {
    for (int64_t k = 0; k < count; k += 4) {
      const auto at = [&](int64_t i) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * kStretchQuads + k));
      };
      const __m128i a = at(0), b = at(1), c = at(2), d = at(3);
      const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
      const __m128i ab_high = _mm_unpackhi_epi32(a, b), cd_high = _mm_unpackhi_epi32(c, d);
      const auto put = [&](int64_t i, __m128i quads) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + (k + i) * rows + row), quads);
      };
      put(0, _mm_unpacklo_epi64(ab, cd));
      put(1, _mm_unpackhi_epi64(ab, cd));
      put(2, _mm_unpacklo_epi64(ab_high, cd_high));
      put(3, _mm_unpackhi_epi64(ab_high, cd_high));
    }
  }
  for (; row < rows; ++row, from += kStretchQuads) {
    for (int64_t k = 0; k < count; ++k) to[k * rows + row] = from[k];
  }
}

template <Format kOf>
void pack_of(const std::byte* a, DType type, int64_t stride, int64_t height, int64_t columns,
             bool hadamard, const Int8Strips& strip) {
  constexpr bool kParted = kOf != Format::kQ8;
  const int64_t padded = int8_quads(kOf, columns) * 4;
  alignas(64) float numbers[kStretch];
  alignas(64) uint32_t quads[kStripRows * kStretchQuads];
  uint32_t* to = strip.quads;
  float* scales = strip.scales;
  for (int64_t first = 0; first < columns; first += kStretch) {
    const int64_t count = std::min(kStretch, columns - first);
    const int64_t whole = std::min(kStretch, padded - first);
    for (int64_t row = 0; row < height; ++row) {
      const float* const from =
          read_stretch(a, type, row * stride + first, count, stride, hadamard, numbers);
      int32_t sums[kStretch / 32] = {};
      scales[row] = quantize(from, static_cast<int>(int8_group(kOf)), kParted,
                             quads + row * kStretchQuads, sums);
      int32_t all = 0;
      for (int64_t g = 0; g < kStretchGroups<kOf>; ++g) {
        all += sums[g];
        if (kParted) scales[(2 + g) * height + row] = static_cast<float>(sums[g]);
      }
      const int32_t begin = kFloatBits - 128 * all;
      std::memcpy(scales + height + row, &begin, sizeof(begin));
    }
    interleave(quads, height, whole / 4, to);
    to += whole / 4 * height;
    scales += kStretchScales<kOf> * height;
  }
}

inline void pack(Format format, const std::byte* a, DType type, int64_t stride, int64_t height,
                 int64_t columns, bool hadamard, const Int8Strips& strip) {
  if (format == Format::kQ4_1) {
    return pack_of<Format::kQ4_1>(a, type, stride, height, columns, hadamard, strip);
  }
  if (format == Format::kQ8) {
    return pack_of<Format::kQ8>(a, type, stride, height, columns, hadamard, strip);
  }
  pack_of<Format::kQ4>(a, type, stride, height, columns, hadamard, strip);
}

// The stretch's scale from the bits of its largest magnitude (which are above infinity's for a
// NaN), and the factor that its inputs are multiplied by.
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
