#include "kernels/cpu/attention_codes.h"

namespace spillway::cpu {

bool attends_codes(int64_t head_size) {
#if defined(__x86_64__)
  static const bool vnni =
      __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return vnni && codes_head_size(head_size);
#else
  return head_size < 0;
#endif
}

}  // namespace spillway::cpu
