// Choice of the instructions that multiply in 8 bits.
#include "kernels/cpu/gemm_int8.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/base/check.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/input_hadamard.h"

namespace spillway::cpu {

namespace {

#if defined(__x86_64__)
// clang 14's __builtin_cpu_supports() does not know it.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
}
#endif

int64_t stretches_of(int64_t columns) {
  return (columns + kStretch - 1) / kStretch;
}

// Those of vectors, for any number of rows.
const Int8Bodies* vector_bodies() {
#if defined(__x86_64__)
  static const Int8Bodies* const best = [] {
    if (has_avx512_vnni()) return &kInt8Vnni;
    if (has_avx_vnni()) return &kInt8AvxVnni;
    return has_avx2() ? &kInt8Avx2 : nullptr;
  }();
  return best;
#else
  return nullptr;
#endif
}

}  // namespace

bool has_avx_vnni() {
#if defined(__x86_64__)
  constexpr unsigned kFeatures = 7, kAvxVnni = 1u << 4;  // EAX of 7.1
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_avx2() && __get_cpuid_count(kFeatures, 1, &eax, &ebx, &ecx, &edx) != 0 &&
         (eax & kAvxVnni) != 0;
#else
  return false;
#endif
}

bool has_avx512_vnni() {
#if defined(__x86_64__)
  static const bool has =
      __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return has;
#else
  return false;
#endif
}

bool has_int8() {
  return vector_bodies() != nullptr;
}

const Int8Bodies& int8_bodies(int64_t rows) {
  SPILLWAY_CHECK(has_int8());
#if defined(__x86_64__)
  // With fewer rows memory sets the time, and a tile would be filled with few.
  constexpr int64_t kTileRowsMin = 13;
  static const bool tiles = vector_bodies() == &kInt8Vnni && has_amx_int8();
  if (tiles && rows >= kTileRowsMin) return kInt8Amx;
#endif
  return *vector_bodies();
}

int64_t int8_quads(Format format, int64_t columns) {
  const int64_t group = int8_group(format);
  return (columns + group - 1) / group * (group / 4);
}

int64_t int8_row_quads(const Int8Bodies& bodies, Format format, int64_t columns) {
  const int64_t multiple = bodies.quad_multiple;
  return (int8_quads(format, columns) + multiple - 1) / multiple * multiple;
}

int64_t int8_scales(Format format, int64_t columns) {
  return stretches_of(columns) * int8_stretch_scales(format);
}

void pack_int8_strip(const Int8Bodies& bodies, Format format, const std::byte* a, DType type,
                     int64_t stride, int64_t height, int64_t columns, bool hadamard,
                     const Int8Strips& strip) {
  SPILLWAY_CHECK(takes_int8(format) && type != DType::kF16);
  static_assert(kHadamardMax == kStretch);
  bodies.pack(format, a, type, stride, height, columns, hadamard, strip);
}

size_t int8_scratch_bytes(const Int8Bodies& bodies, Format format, int64_t rows, int64_t columns) {
  if (!is_grouped(format) || rows < bodies.expand_rows) return 0;
  return rows <= kGemmRowsMax ? int8_scratch_bytes_max(kStretch) : int8_scratch_bytes_max(columns);
}

Int8Panels int8_panels(const Int8Bodies& bodies, Format format, int64_t rows,
                       const std::byte* packed, std::byte* scratch) {
  if (!is_grouped(format) || rows < bodies.expand_rows) return {.packed = packed};
  return {.packed = packed,
          .expanded = reinterpret_cast<ExpandedPair*>(scratch),
          .kept = rows > kGemmRowsMax};
}

void multiply_int8_tile(const Int8Bodies& bodies, Format format, const Int8Strips& a, int64_t rows,
                        int64_t columns, const Int8Panels& panels, float* c,
                        const TileTaker& taker) {
  SPILLWAY_CHECK(takes_int8(format));
  bodies.multiply(format, a, rows, columns, panels, c, taker);
}

}  // namespace spillway::cpu
