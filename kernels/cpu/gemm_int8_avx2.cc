// AVX2: bytes are multiplied and added in pairs to 16 bits, which the products here never overflow
// (several of nibbles are added there), then in pairs again to 32.
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

using Quad = Bytes;
inline Quad quad_of(const uint32_t* from) {
  return _mm256_set1_epi32(static_cast<int>(*from));
}

// Sixteen products of at most 15 * 127 fit 16 bits, so those of four words are widened together: an
// instruction that multiplies is what there are too few of.
constexpr int kWordsTogether = 4;
static_assert(4 * kWordsTogether * 15 * 127 <= std::numeric_limits<int16_t>::max());

// sums[at] = codes[at] . quad, in 16 bits.
template <int kVectors>
inline void first_pairs(const Bytes (&codes)[kVectors], Quad quad, __m256i (&sums)[kVectors]) {
#pragma GCC unroll 4
  for (int at = 0; at < kVectors; ++at) {
    asm volatile("vpmaddubsw %[quad], %[codes], %[sum]"
                 : [sum] "=x"(sums[at])
                 : [quad] "x"(quad), [codes] "x"(codes[at]));
  }
}

// sums[at] += codes[at] . quad. In assembly, since g++ 12 makes of intrinsics a loop that loads the
// activations of all rows first and keeps five of eight sums on the stack.
template <int kVectors>
inline void add_pairs(const Bytes (&codes)[kVectors], Quad quad, __m256i (&sums)[kVectors]) {
  static_assert(kVectors % 2 == 0);
#pragma GCC unroll 4
  for (int at = 0; at < kVectors; at += 2) {
    __m256i a = quad, b, sum0 = sums[at], sum1 = sums[at + 1];
    asm volatile(
        "vpmaddubsw %[a], %[codes0], %[b]\n\t"
        "vpmaddubsw %[a], %[codes1], %[a]\n\t"
        "vpaddw %[b], %[sum0], %[sum0]\n\t"
        "vpaddw %[a], %[sum1], %[sum1]"
        : [a] "+&x"(a), [b] "=&x"(b), [sum0] "+x"(sum0), [sum1] "+x"(sum1)
        : [codes0] "x"(codes[at]), [codes1] "x"(codes[at + 1]));
    sums[at] = sum0;
    sums[at + 1] = sum1;
  }
}

// The dot products of a group's words and kRows rows.
template <int kRows, int kVectors, int kWords, class WordsAt, class Note>
inline void dot_group(const Dots& dots, const WordsAt& words_at, const uint32_t* quads,
                      Ints (*sums)[kVectors], const Note& note) {
  static_assert(kWords % kWordsTogether == 0);
#pragma GCC unroll 1
  for (int first = 0; first < kWords; first += kWordsTogether) {
    __m256i narrow[kRows][kVectors];
#pragma GCC unroll 4
    for (int word = 0; word < kWordsTogether; ++word, quads += 2 * kRows) {
      note(first + word);
      Bytes even[kVectors], odd[kVectors];
#pragma GCC unroll 4
      for (int at = 0; at < kVectors; ++at) {
        const Bytes both = load_bytes(words_at(first + word, at));
        even[at] = low(both), odd[at] = high(both);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        if (word == 0) {
          first_pairs(even, quad_of(quads + i), narrow[i]);
        } else {
          add_pairs(even, quad_of(quads + i), narrow[i]);
        }
        add_pairs(odd, quad_of(quads + kRows + i), narrow[i]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int at = 0; at < kVectors; ++at) {
        const Ints wide = _mm256_madd_epi16(narrow[i][at], dots.ones);
        sums[i][at] = first == 0 ? wide : _mm256_add_epi32(sums[i][at], wide);
      }
    }
  }
}

// The instruction multiplies bytes without a sign by bytes with one, so the weights' signs go to
// the activations. Two products of at most 128 * 127 fit 16 bits, where those of weights + 128
// would not; so sums start at none.
struct Weights {
  __m256i magnitude, sign;
};

inline Ints start(int32_t) {
  return _mm256_set1_epi32(0x4b400000);  // kFloatBits
}
inline Weights load_weights(const Dots&, const std::byte* from) {
  const __m256i sign = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
                                        _mm256_set1_epi8(-128));
  return {_mm256_abs_epi8(sign), sign};
}
inline Ints product(Ints sum, const Dots& dots, const Weights& weights, Quad quad) {
  const __m256i pair_sums =
      _mm256_maddubs_epi16(weights.magnitude, _mm256_sign_epi8(quad, weights.sign));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pair_sums, dots.ones));
}

#define SPILLWAY_INT8_DOT_GROUP
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
