#include "kernels/cpu/amx.h"

#if defined(__x86_64__)

#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace spillway::cpu {

namespace {

constexpr unsigned kTiles = 1u << 24, kTilesBf16 = 1u << 22, kTilesInt8 = 1u << 25;

// EDX of leaf 7.0; zero where the process may not use tiles.
unsigned tile_features() {
  static const unsigned found = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0) return 0u;
    // Linux lets a process use tiles on request; older kernels do not know the request.
    constexpr int kTileData = 18;
    return ::syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData) == 0 ? d : 0u;
  }();
  return found;
}

}  // namespace

bool has_amx_bf16() {
  return (tile_features() & kTilesBf16) != 0;
}
bool has_amx_int8() {
  return (tile_features() & kTilesInt8) != 0;
}

}  // namespace spillway::cpu

#else

namespace spillway::cpu {

bool has_amx_bf16() {
  return false;
}
bool has_amx_int8() {
  return false;
}

}  // namespace spillway::cpu

#endif
