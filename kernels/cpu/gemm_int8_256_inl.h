// Vectors of 256 bits for gemm_int8_inl.h, whatever multiplies bytes; included by the files that
// define that, inside their namespaces and target attributes, and empty for all others.
#ifdef SPILLWAY_INT8_VECTORS_256

constexpr int kLanes = 8;

using Ints = __m256i;
using Bytes = __m256i;
using Floats = __m256;

inline Ints zero_ints() {
  return _mm256_setzero_si256();
}
inline Floats zero() {
  return _mm256_setzero_ps();
}
inline Floats set(float value) {
  return _mm256_set1_ps(value);
}
inline Floats load(const float* from) {
  return _mm256_load_ps(from);
}
inline Floats load_some(const float* from) {  // At any address
  return _mm256_loadu_ps(from);
}
inline void store(float* to, Floats value) {
  _mm256_store_ps(to, value);
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline Floats sub(Floats a, Floats b) {
  return _mm256_sub_ps(a, b);
}
inline Floats mul(Floats a, Floats b) {
  return _mm256_mul_ps(a, b);
}
inline Floats floats_of(Ints ints) {
  return _mm256_cvtepi32_ps(ints);
}
inline Floats as_floats(Ints ints) {
  return _mm256_castsi256_ps(ints);
}
inline void rename(Ints& ints) {
  asm("" : "+x"(ints));
}
inline Floats widen(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Floats widen_bf16(const uint16_t* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline void store_ints(void* to, Ints ints) {
  _mm256_store_si256(static_cast<__m256i*>(to), ints);
}
inline Ints ints_of(Floats floats) {
  return _mm256_cvtps_epi32(floats);
}
inline Ints widen_bits(const uint16_t* from) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline bool any_negative(Ints ints) {
  return _mm256_movemask_ps(_mm256_castsi256_ps(ints)) != 0;
}
inline Bytes load_bytes(const uint32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline Bytes low(Bytes words) {
  return _mm256_and_si256(words, _mm256_set1_epi8(15));
}
inline Bytes high(Bytes words) {
  return low(_mm256_srli_epi32(words, 4));
}

inline float scale_of(int32_t bits, float* factor);

inline int32_t sum_of(__m256i eight) {
  const __m128i four =
      _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

inline int32_t max_of(__m256i eight) {
  const __m128i four =
      _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

inline float quantize(const float* stretch, int group, bool parted, uint32_t* quads,
                      int32_t* sums) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < kStretch; i += kLanes) {
    const __m256i bits = _mm256_and_si256(_mm256_castps_si256(load_some(stretch + i)), magnitude);
    largest = _mm256_max_epi32(largest, bits);
  }
  float factor = 0;
  const float scale = scale_of(max_of(largest), &factor);
  // Puts the even ones of every eight inputs first.
  const __m256i even_first =
      _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,  //
                       0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  for (int first = 0; first < kStretch; first += 32) {
    __m256i ints[4], sum = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      const __m256i rounded = ints_of(mul(load_some(stretch + first + kLanes * i), set(factor)));
      // What is no number becomes the least integer, and then the least byte.
      ints[i] = _mm256_max_epi32(rounded, _mm256_set1_epi32(-127));
      sum = _mm256_add_epi32(sum, ints[i]);
    }
    sums[first / group] += sum_of(sum);
    // Packing works within 128-bit lanes: 32-bit parts come out as 0 4 1 5 2 6 3 7.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(ints[0], ints[1]),
                                             _mm256_packs_epi32(ints[2], ints[3]));
    const __m256i ordered =
        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_store_si256(reinterpret_cast<__m256i*>(quads + first / 4),
                       parted ? _mm256_shuffle_epi8(ordered, even_first) : ordered);
  }
  return scale;
}

#endif  // SPILLWAY_INT8_VECTORS_256
