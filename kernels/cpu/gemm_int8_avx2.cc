// AVX2: bytes are multiplied and added in pairs to 16 bits, which the products here never overflow,
// then in pairs again to 32.
#include "kernels/cpu/gemm_int8.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/base/quantized.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/strips.h"
#include "kernels/input_hadamard.h"
#include "kernels/q8_panels.h"
#include "kernels/weight_layout.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")

namespace spillway::cpu {

namespace avx2 {

constexpr int kStripRows = 4;
constexpr int kSumPanels = 1;
constexpr int sum_panels_for(int rows) {
  return rows == 1 ? 2 : kSumPanels;
}
constexpr int panels_for(int rows) {
  return rows == 1 ? 2 : 1;
}

#define SPILLWAY_INT8_VECTORS_256
#include "kernels/cpu/gemm_int8_256_inl.h"
#undef SPILLWAY_INT8_VECTORS_256

struct Dots {
  Dots() : ones(_mm256_set1_epi16(1)) {}
  __m256i ones;
};

// Four products of at most 15 * 127 fit 16 bits.
inline Ints dot(Ints sum, const Dots& dots, Bytes even, Bytes odd, const uint32_t* quads,
                int apart) {
  const __m256i a = _mm256_set1_epi32(static_cast<int>(quads[0]));
  const __m256i b = _mm256_set1_epi32(static_cast<int>(quads[apart]));
  const __m256i pair_sums =
      _mm256_add_epi16(_mm256_maddubs_epi16(even, a), _mm256_maddubs_epi16(odd, b));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pair_sums, dots.ones));
}

// The instruction multiplies bytes without a sign by bytes with one, so the weights' signs go to
// the activations. Two products of at most 128 * 127 fit 16 bits, where those of weights + 128
// would not; so sums start at none.
struct Weights {
  __m256i magnitude, sign;
};
using Quad = Bytes;

inline Ints start(int32_t) {
  return _mm256_set1_epi32(0x4b400000);  // kFloatBits
}
inline Weights load_weights(const Dots&, const std::byte* from) {
  const __m256i sign = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
                                        _mm256_set1_epi8(-128));
  return {_mm256_abs_epi8(sign), sign};
}
inline Quad quad_of(const uint32_t* from) {
  return _mm256_set1_epi32(static_cast<int>(*from));
}
inline Ints product(Ints sum, const Dots& dots, const Weights& weights, Quad quad) {
  const __m256i pair_sums =
      _mm256_maddubs_epi16(weights.magnitude, _mm256_sign_epi8(quad, weights.sign));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pair_sums, dots.ones));
}

#define SPILLWAY_INT8_BODIES
#include "kernels/cpu/gemm_int8_inl.h"

}  // namespace avx2

// Products of two bytes take twice the instructions of those of a nibble and a byte, so that panels
// are never expanded.
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

const Int8Bodies kInt8Avx2 = {avx2::kStripRows, kNever, &avx2::pack, &avx2::multiply};

}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES

#endif
