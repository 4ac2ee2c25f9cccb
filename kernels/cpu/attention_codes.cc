#include "kernels/cpu/attention_codes.h"

#include "kernels/cpu/gemm_int8.h"

namespace spillway::cpu {

#if defined(__x86_64__)

const Q4Steps& q4_steps(bool avx512) {
  return avx512 && has_avx512_vnni() ? kQ4Vnni : kQ4Avx2;
}

const Q8Steps& q8_steps(bool avx512) {
  return avx512 && has_avx512_vnni() ? kQ8Vnni : kQ8Avx2;
}

#endif

}  // namespace spillway::cpu
