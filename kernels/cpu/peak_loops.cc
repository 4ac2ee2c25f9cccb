#include "kernels/cpu/peak_loops.h"

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_int8.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace spillway::cpu {

namespace {

constexpr int kChains = 12;

constexpr double operations(int lanes) {
  return 2.0 * kChains * lanes;
}

// Loop for any CPU, as the compiler makes it: a multiplication and an addition, four lanes of them.
using FourFloats [[gnu::vector_size(16)]] = float;
void any_cpu_f32(int64_t turns) {
  volatile float given = 1;  // The compiler must not know the result.
  const FourFloats a = {given, given, given, given};
  FourFloats sums[kChains] = {};
  for (int64_t turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 12
    for (FourFloats& sum : sums) sum = sum * a + a;
  }
  FourFloats all = sums[0];
  for (int i = 1; i < kChains; ++i) all += sums[i];
  given = all[0] + all[1] + all[2] + all[3];
}

#if defined(__x86_64__)

// A turn of twelve sums. In assembly, so that nothing else is in the loop and nothing is left out.
// clang-format off
#define SPILLWAY_TWELVE(STEP)                                              \
  STEP("%0") STEP("%1") STEP("%2") STEP("%3") STEP("%4") STEP("%5")        \
  STEP("%6") STEP("%7") STEP("%8") STEP("%9") STEP("%10") STEP("%11")
// clang-format on
#define SPILLWAY_SUMS                                                                             \
  "+v"(s[0]), "+v"(s[1]), "+v"(s[2]), "+v"(s[3]), "+v"(s[4]), "+v"(s[5]), "+v"(s[6]), "+v"(s[7]), \
      "+v"(s[8]), "+v"(s[9]), "+v"(s[10]), "+v"(s[11])
#define SPILLWAY_LOOP(STEP)                                               \
  for (int64_t turn = 0; turn < turns; ++turn) {                          \
    asm volatile(SPILLWAY_TWELVE(STEP) : SPILLWAY_SUMS : "v"(a), "v"(b)); \
  }

#define SPILLWAY_FMA(SUM) "vfmadd231ps %12, %13, " SUM "\n\t"
#define SPILLWAY_DPBUSD_VEX(SUM) "%{vex%} vpdpbusd %12, %13, " SUM "\n\t"
// Sums of 16 bits, which kernels widen some at a time: no kernel needs fewer instructions.
#define SPILLWAY_MADDUBS(SUM) "vpmaddubsw %12, %13, %%ymm15\n\tvpaddw %%ymm15, " SUM ", " SUM "\n\t"

__attribute__((target("avx2,fma"))) void avx2_f32(int64_t turns) {
  const __m256 a = _mm256_set1_ps(0.5f), b = a;
  __m256 s[kChains] = {};
  SPILLWAY_LOOP(SPILLWAY_FMA)
}

// With twice the registers, twice the sums: with twelve of five cycles each, whatever else the loop
// does costs a cycle now and then (VPDPBUSD on a core of Emerald Rapids: 723 instead of 766 GOP/s).
// Inline assembly takes 30 operands, of which each sum would be two, so registers have their names;
// zmm30 holds both factors.
#define SPILLWAY_SUMS_512 \
  ".irp sum, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n\t"
constexpr double operations_512(int lanes) {
  constexpr int kSums = 24;  // As above
  return 2.0 * kSums * lanes;
}
#define SPILLWAY_LOOP_512(INSTRUCTION, FACTOR)                                                   \
  const __m512i factor = _mm512_set1_epi32(FACTOR);                                              \
  if (turns <= 0) return;                                                                        \
  asm volatile("vmovdqa64 %1, %%zmm30\n\t" SPILLWAY_SUMS_512                                     \
               "vpxord %%zmm\\sum, %%zmm\\sum, %%zmm\\sum\n\t"                                   \
               ".endr\n"                                                                         \
               "1:\n\t" SPILLWAY_SUMS_512 INSTRUCTION                                            \
               " %%zmm30, %%zmm30, %%zmm\\sum\n\t"                                               \
               ".endr\n\t"                                                                       \
               "decq %0\n\t"                                                                     \
               "jnz 1b"                                                                          \
               : "+r"(turns)                                                                     \
               : "v"(factor)                                                                     \
               : "cc", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8",   \
                 "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", \
                 "zmm18", "zmm19", "zmm20", "zmm21", "zmm22", "zmm23", "zmm30")

__attribute__((target("avx512f"))) void avx512_f32(int64_t turns) {
  SPILLWAY_LOOP_512("vfmadd231ps", 0x3f000000);  // 0.5
}

// 0x3c3c is a small positive number in bf16, and twice 60 in bytes.
__attribute__((target("avx512f,avx512bf16"))) void avx512_bf16(int64_t turns) {
  SPILLWAY_LOOP_512("vdpbf16ps", 0x3c3c3c3c);
}

__attribute__((target("avx512f,avx512vnni"))) void avx512_int8(int64_t turns) {
  SPILLWAY_LOOP_512("vpdpbusd", 0x3c3c3c3c);
}

__attribute__((target("avx2,avxvnni"))) void avx_vnni_int8(int64_t turns) {
  const __m256i a = _mm256_set1_epi32(0x3c3c3c3c), b = a;
  __m256i s[kChains] = {};
  SPILLWAY_LOOP(SPILLWAY_DPBUSD_VEX)
}

__attribute__((target("avx2"))) void avx2_int8(int64_t turns) {
  const __m256i a = _mm256_set1_epi32(0x3c3c3c3c), b = a;
  __m256i s[kChains] = {};
  for (int64_t turn = 0; turn < turns; ++turn) {
    asm volatile(SPILLWAY_TWELVE(SPILLWAY_MADDUBS) : SPILLWAY_SUMS : "v"(a), "v"(b) : "xmm15");
  }
}

// Tiles of 16 rows of 64 bytes. Six sums; a product takes 16 cycles, and its sum is ready after 52.
constexpr double kTileOperations = 6 * 2.0 * 16 * 16;  // Per number of a row

#define SPILLWAY_TILE_LOOP(PRODUCT)              \
  _tile_loadconfig(&kWholeTiles);                \
  _tile_zero(0);                                 \
  _tile_zero(1);                                 \
  _tile_zero(2);                                 \
  _tile_zero(3);                                 \
  _tile_zero(4);                                 \
  _tile_zero(5);                                 \
  _tile_zero(6);                                 \
  _tile_zero(7);                                 \
  for (int64_t turn = 0; turn < turns; ++turn) { \
    PRODUCT(0, 6, 7);                            \
    PRODUCT(1, 6, 7);                            \
    PRODUCT(2, 6, 7);                            \
    PRODUCT(3, 6, 7);                            \
    PRODUCT(4, 6, 7);                            \
    PRODUCT(5, 6, 7);                            \
  }                                              \
  _tile_release()

__attribute__((target("amx-tile,amx-bf16"))) void amx_bf16(int64_t turns) {
  SPILLWAY_TILE_LOOP(_tile_dpbf16ps);
}

__attribute__((target("amx-tile,amx-int8"))) void amx_int8(int64_t turns) {
  SPILLWAY_TILE_LOOP(_tile_dpbsud);
}

#endif

}  // namespace

std::vector<PeakLoop> peak_loops() {
  std::vector<PeakLoop> loops;
  const auto add = [&](const char* instruction, Arithmetic arithmetic, double operations,
                       void (*run)(int64_t)) {
    loops.push_back({instruction, arithmetic, operations, run});
  };
  add("multiplications and additions of 128 bits", Arithmetic::kF32, operations(4), any_cpu_f32);
#if defined(__x86_64__)
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0;
  if (__builtin_cpu_supports("avx2") != 0) {
    if (__builtin_cpu_supports("fma") != 0) {
      add("VFMADD231PS, 256 bits", Arithmetic::kF32, operations(8), avx2_f32);
    }
    add("VPMADDUBSW, 256 bits", Arithmetic::kInt8, operations(32), avx2_int8);
    if (has_avx_vnni()) {
      add("VPDPBUSD, 256 bits", Arithmetic::kInt8, operations(32), avx_vnni_int8);
    }
  }
  if (avx512) add("VFMADD231PS, 512 bits", Arithmetic::kF32, operations_512(16), avx512_f32);
  if (avx512 && __builtin_cpu_supports("avx512bf16") != 0) {
    add("VDPBF16PS, 512 bits", Arithmetic::kBF16, operations_512(32), avx512_bf16);
  }
  if (avx512 && __builtin_cpu_supports("avx512vnni") != 0) {
    add("VPDPBUSD, 512 bits", Arithmetic::kInt8, operations_512(64), avx512_int8);
  }
  if (has_amx_bf16()) add("TDPBF16PS", Arithmetic::kBF16, kTileOperations * 32, amx_bf16);
  if (has_amx_int8()) add("TDPBSUD", Arithmetic::kInt8, kTileOperations * 64, amx_int8);
#endif
  return loops;
}

}  // namespace spillway::cpu
