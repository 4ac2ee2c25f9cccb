// Quantised numbers as factors on tensor cores: a number is scale * code + minimum, where all of a
// group have the same scale and minimum. So a group's part of a product is scale * (codes * x) +
// minimum * (sum of x), and it is enough to turn codes into numbers of 16 bits, two at a time: bits
// of a code are put into the significand of a number whose exponent is known (Kim et al., "Who Says
// Elephants Can't Run", arXiv 2211.10017; Frantar et al., "MARLIN", arXiv 2408.11743). Small
// integers are exact in both formats: nothing is rounded before the sums.
//
// Word w of a group has its numbers w, kWords + w, ... (quant.cuh). Lane 4 g + t of a warp needs
// numbers 2 t and 2 t + 1 of every eight (mma.cuh), which lie side by side in two words.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/quant.cuh"

namespace spillway::cuda {

// In both halves of a word.
constexpr uint32_t twice(uint32_t half) {
  return half << 16 | half;
}

// (x & mask) | bits, in one instruction: of two constants the compiler makes two.
__device__ inline uint32_t choose_bits(uint32_t x, uint32_t mask, uint32_t bits) {
#ifdef SPILLWAY_CUDA_EMULATED
  return (x & mask) | bits;
#else
  uint32_t word;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(word) : "r"(x), "r"(mask), "r"(bits));
  return word;
#endif
}

// a - b, of two numbers each.
template <class T>
__device__ uint32_t subtract_two(uint32_t a, uint32_t b) {
  using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  Two x, y;
  memcpy(static_cast<void*>(&x), &a, sizeof(a));
  memcpy(static_cast<void*>(&y), &b, sizeof(b));
  const Two difference = __hsub2(x, y);
  uint32_t word;
  memcpy(&word, &difference, sizeof(word));
  return word;
}

// A one in both halves, for sums.
template <class T>
constexpr uint32_t kOnes = twice(std::is_same_v<T, __half> ? 0x3c00 : 0x3f80);

// What nibble_codes() adds: it costs nothing, where taking it off would cost an instruction a pair,
// and it is small enough not to take places from the sums.
constexpr float kNibbleAdded = 16.0f;

// Of both halves of a word the code `field`, 0 to 3, as kNibbleAdded + code: the four bits are the
// uppermost of the significand.
template <class T>
__device__ uint32_t nibble_codes(uint32_t word, int field) {
  constexpr bool kHalf = std::is_same_v<T, __half>;
  constexpr int kAt = (kHalf ? 10 : 7) - 4;
  constexpr uint32_t kSixteen = twice(kHalf ? 0x4c00 : 0x4180);
  const int shift = 4 * field - kAt;
  const uint32_t there = shift < 0 ? word << -shift : word >> shift;
  return choose_bits(there, twice(0xf << kAt), kSixteen);
}

// A word of a group, of each of two rows: as pairs, each of both rows' code, kNibbleAdded + code.
template <class T>
class TwoRowsCodes {
 public:
  __device__ TwoRowsCodes(uint32_t first, uint32_t second) {
    words_[0] = __byte_perm(first, second, 0x5410);  // Both lower halves
    words_[1] = __byte_perm(first, second, 0x7632);
  }
  __device__ uint32_t pair(int field) const {
    return nibble_codes<T>(words_[field / 4], field % 4);
  }

 private:
  uint32_t words_[2];
};

// A lane's part of a group of one output, as numbers of T.
template <int kBits, int kGroup, class T>
class GroupCodes {
  using G = Groups<kBits, kGroup>;
  static constexpr bool kHalf = std::is_same_v<T, __half>;

 public:
  // Codes come out of pair() with this added.
  static constexpr float kAdded = kBits == 4 ? kNibbleAdded : -128.0f;

  // From where the group begins.
  __device__ void load(const std::byte* begin) {
    const float2 shared = __half22float2(*reinterpret_cast<const __half2*>(begin));
    scale_ = shared.x;
    minimum_ = fmaf(-kAdded, shared.x, shared.y);
    const int lane = static_cast<int>(threadIdx.x) % 4;
    const auto* at = reinterpret_cast<const uint32_t*>(begin + sizeof(__half2)) +
                     (G::kWords == 8 ? lane : lane % 2) * 2;
    const uint32_t left = at[0], right = at[1];
    if constexpr (kBits == 8) {
      words_[0] = left;
      words_[1] = right;
    } else {
      words_[0] = __byte_perm(left, right, 0x5410);  // Both lower halves
      words_[1] = __byte_perm(left, right, 0x7632);
      if constexpr (G::kWords == 4) {  // Eight columns are two of the words' codes.
        words_[0] >>= lane / 2 * kBits;
        words_[1] >>= lane / 2 * kBits;
      }
    }
  }

  __device__ float scale() const { return scale_; }
  // Less what is added to codes.
  __device__ float minimum() const { return minimum_; }

  // Numbers 2 t and 2 t + 1 of the group's i'th eight.
  __device__ uint32_t pair(int i) const {
    if constexpr (kBits == 8) return byte_codes(i);
    const int field = i * (8 / G::kWords);
    return nibble_codes<T>(words_[field / 4], field % 4);
  }

 private:
  // code - 128. The significand of bf16 has seven bits, so the code's eighth decides what its other
  // bits are added to: with it 128 + bits - 128, without it 128 + bits - 256.
  __device__ uint32_t byte_codes(int i) const {
    const auto bytes = static_cast<uint32_t>(0x0400 + 0x0101 * i);  // Of both words the i'th
    const uint32_t codes = __byte_perm(words_[0], words_[1], bytes);
    if constexpr (kHalf) {
      return subtract_two<T>(choose_bits(codes, twice(0xff), twice(0x6400)), twice(0x6480));
    } else {
      return subtract_two<T>(choose_bits(codes, twice(0x7f), twice(0x4300)),
                             choose_bits(~codes, twice(0x80), twice(0x4300)));
    }
  }

  float scale_, minimum_;
  uint32_t words_[2];
};

}  // namespace spillway::cuda
