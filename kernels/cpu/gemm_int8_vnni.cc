// AVX-512 VNNI: an instruction multiplies and adds 64 pairs of bytes.
#include "kernels/cpu/gemm_int8.h"

#if defined(__x86_64__)

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/base/quantized.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/strips.h"
#include "kernels/input_hadamard.h"
#include "kernels/q8_panels.h"
#include "kernels/weight_layout.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace spillway::cpu {

namespace vnni {

constexpr int kLanes = 16;
constexpr int kStripRows = 12;
constexpr int kSumPanels = 2;  // 24 sums, two vectors of weights and one of activations
constexpr int sum_panels_for(int rows) {
  return rows <= 6 ? 4 : kSumPanels;
}
constexpr int panels_for(int rows) {
  return rows <= 3 ? 4 : rows <= 6 ? 2 : 1;
}

using Ints = __m512i;
using Bytes = __m512i;
using Floats = __m512;

inline Ints zero_ints() {
  return _mm512_setzero_si512();
}
inline Floats zero() {
  return _mm512_setzero_ps();
}
inline Floats set(float value) {
  return _mm512_set1_ps(value);
}
inline Floats load(const float* from) {
  return _mm512_load_ps(from);
}
inline Floats load_some(const float* from) {  // At any address
  return _mm512_loadu_ps(from);
}
inline void store(float* to, Floats value) {
  _mm512_store_ps(to, value);
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline Floats sub(Floats a, Floats b) {
  return _mm512_sub_ps(a, b);
}
inline Floats mul(Floats a, Floats b) {
  return _mm512_mul_ps(a, b);
}
// (All lanes by name: g++ 12 warns of its own headers otherwise.)
inline Floats floats_of(Ints ints) {
  return _mm512_maskz_cvtepi32_ps(0xffff, ints);
}
inline Floats as_floats(Ints ints) {
  return _mm512_castsi512_ps(ints);
}
inline void rename(Ints& ints) {
  asm("" : "+v"(ints));
}
inline Floats widen(const uint16_t* from) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Floats widen_bf16(const uint16_t* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, bits), 16));
}
inline Bytes load_bytes(const uint32_t* from) {
  return _mm512_loadu_si512(from);
}
inline void store_ints(void* to, Ints ints) {
  _mm512_store_si512(to, ints);
}
inline Ints ints_of(Floats floats) {
  return _mm512_maskz_cvtps_epi32(0xffff, floats);
}
inline Ints widen_bits(const uint16_t* from) {
  return _mm512_maskz_cvtepu16_epi32(0xffff,
                                     _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline bool any_negative(Ints ints) {
  return _mm512_movepi32_mask(ints) != 0;
}
inline Bytes low(Bytes words) {
  return _mm512_and_si512(words, _mm512_set1_epi8(15));
}
inline Bytes high(Bytes words) {
  return low(_mm512_maskz_srli_epi32(0xffff, words, 4));
}

struct Dots {};

inline Ints dot(Ints sum, const Dots&, Bytes even, Bytes odd, const uint32_t* quads, int apart) {
  sum = _mm512_dpbusd_epi32(sum, even, _mm512_set1_epi32(static_cast<int>(quads[0])));
  return _mm512_dpbusd_epi32(sum, odd, _mm512_set1_epi32(static_cast<int>(quads[apart])));
}

using Weights = Bytes;
using Quad = Bytes;

inline Ints start(int32_t value) {
  return _mm512_set1_epi32(value);
}
inline Weights load_weights(const Dots&, const std::byte* from) {
  return _mm512_loadu_si512(from);
}
// One load for all of a row's products: the compiler would otherwise put it into each of them, and
// a core loads no more in a cycle than it multiplies.
inline Quad quad_of(const uint32_t* from) {
  __m512i quad = _mm512_set1_epi32(static_cast<int>(*from));
  asm("" : "+v"(quad));
  return quad;
}
inline Ints product(Ints sum, const Dots&, Weights weights, Quad quad) {
  return _mm512_dpbusd_epi32(sum, weights, quad);
}

inline float scale_of(int32_t bits, float* factor);

inline float quantize(const float* stretch, int group, bool parted, uint32_t* quads,
                      int32_t* sums) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  for (int i = 0; i < kStretch; i += kLanes) {
    const __m512i bits = _mm512_and_si512(_mm512_loadu_si512(stretch + i), magnitude);
    largest = _mm512_maskz_max_epi32(0xffff, largest, bits);
  }
  float factor = 0;
  const float scale = scale_of(_mm512_reduce_max_epi32(largest), &factor);
  // Puts the even ones of every eight inputs first.
  const __m512i even_first =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  // Packing works within 128-bit lanes, so that words of four bytes come out column by column.
  const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int first = 0; first < kStretch; first += 64) {
    __m512i ints[4];
    for (int i = 0; i < 4; ++i) {
      ints[i] = ints_of(mul(load_some(stretch + first + kLanes * i), set(factor)));
    }
    const __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(ints[0], ints[1]),
                                              _mm512_packs_epi32(ints[2], ints[3]));
    // What is no number became the least integer, and now becomes the least byte.
    const __m512i all = _mm512_max_epi8(_mm512_maskz_permutexvar_epi32(0xffff, in_order, packed),
                                        _mm512_set1_epi8(-127));
    const __m512i fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), all);
    if (group == 64) {
      sums[first / 64] = _mm512_reduce_add_epi32(fours);
    } else {
      sums[first / 32] = _mm512_mask_reduce_add_epi32(0x00ff, fours);
      sums[first / 32 + 1] = _mm512_mask_reduce_add_epi32(0xff00, fours);
    }
    _mm512_store_si512(quads + first / 4, parted ? _mm512_shuffle_epi8(all, even_first) : all);
  }
  return scale;
}

#define SPILLWAY_INT8_BODIES
#include "kernels/cpu/gemm_int8_inl.h"

// Groups of a stretch from `first` on, of panels that are `apart` groups apart.
template <Format kOf>
struct StretchGroups {
  StretchGroups(const std::byte* packed, int64_t columns, int64_t panel, int64_t stretch)
      : apart(int8_quads(kOf, columns) / kGroupQuads<kOf>),
        count(std::min(kStretchGroups<kOf>, apart - stretch * kStretchGroups<kOf>)),
        first(reinterpret_cast<const PanelGroup<kOf>*>(packed) + panel * apart +
              stretch * kStretchGroups<kOf>) {}
  int64_t apart, count;
  const PanelGroup<kOf>* first;
};

template <Format kOf>
void expand_of(const std::byte* packed, int64_t columns, int64_t panel, int64_t stretch,
               ExpandedPair& to) {
  const StretchGroups<kOf> groups(packed, columns, panel, stretch);
  expand_pair(groups.first, groups.apart, static_cast<int>(groups.count), to);
}
void expand(Format format, const std::byte* packed, int64_t columns, int64_t panel, int64_t stretch,
            ExpandedPair& to) {
  return format == Format::kQ4_1 ? expand_of<Format::kQ4_1>(packed, columns, panel, stretch, to)
                                 : expand_of<Format::kQ4>(packed, columns, panel, stretch, to);
}

template <Format kOf>
void fused_of(const Int8Strips& strip, int64_t height, const std::byte* packed, int64_t columns,
              int64_t panel, int64_t stretch, float* c) {
  const StretchGroups<kOf> groups(packed, columns, panel, stretch);
  const FusedKernel<kOf> kernel = kKernels<kOf>.of[height - 1].beside;
  for (int64_t p = 0; p < kPair; ++p) {
    kernel(strip, groups.first + p * groups.apart, groups.apart, groups.count,
           c + p * kPanelOutputs);
  }
}
void fused(Format format, const Int8Strips& strip, int64_t height, const std::byte* packed,
           int64_t columns, int64_t panel, int64_t stretch, float* c) {
  return format == Format::kQ4_1
             ? fused_of<Format::kQ4_1>(strip, height, packed, columns, panel, stretch, c)
             : fused_of<Format::kQ4>(strip, height, packed, columns, panel, stretch, c);
}

}  // namespace vnni

const Int8Bodies kInt8Vnni = {vnni::kStripRows, 13, &vnni::pack, &vnni::multiply};
const Int8Parts kInt8VnniParts = {&vnni::expand, &vnni::fused};

}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES

#endif
