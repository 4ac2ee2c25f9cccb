// AVX-VNNI: an instruction multiplies and adds 32 pairs of bytes, on client CPUs without AVX-512.
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

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avxvnni")

namespace spillway::cpu {

namespace avx_vnni {

constexpr int kStripRows = 6;
constexpr int kSumPanels = 1;  // Twelve sums, two vectors of weights and one of activations
constexpr int sum_panels_for(int rows) {
  return rows <= 2 ? 2 : kSumPanels;
}
constexpr int panels_for(int rows) {
  return rows == 1 ? 2 : 1;
}

#define SPILLWAY_INT8_VECTORS_256
#include "kernels/cpu/gemm_int8_256_inl.h"
#undef SPILLWAY_INT8_VECTORS_256

struct Dots {};

inline Ints dot(Ints sum, const Dots&, Bytes even, Bytes odd, const uint32_t* quads, int apart) {
  sum = _mm256_dpbusd_avx_epi32(sum, even, _mm256_set1_epi32(static_cast<int>(quads[0])));
  return _mm256_dpbusd_avx_epi32(sum, odd, _mm256_set1_epi32(static_cast<int>(quads[apart])));
}

using Weights = Bytes;
using Quad = Bytes;

inline Ints start(int32_t value) {
  return _mm256_set1_epi32(value);
}
inline Weights load_weights(const Dots&, const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline Quad quad_of(const uint32_t* from) {
  return _mm256_set1_epi32(static_cast<int>(*from));
}
inline Ints product(Ints sum, const Dots&, Weights weights, Quad quad) {
  return _mm256_dpbusd_avx_epi32(sum, weights, quad);
}

#define SPILLWAY_INT8_BODIES
#include "kernels/cpu/gemm_int8_inl.h"

}  // namespace avx_vnni

const Int8Bodies kInt8AvxVnni = {avx_vnni::kStripRows, 13, &avx_vnni::pack, &avx_vnni::multiply};

}  // namespace spillway::cpu

HWY_POP_ATTRIBUTES

#endif
