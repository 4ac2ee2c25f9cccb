#include "kernels/cpu/gemm_tiles.h"

#include "kernels/base/check.h"

#if defined(__x86_64__)

#include <asm/prctl.h>
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/cpu/gemm_f32.h"

namespace spillway::cpu {

namespace {

constexpr int64_t kRows = 16;    // Rows of a tile
constexpr int64_t kInputs = 32;  // Inputs in a row of a tile, 64 bytes

// Inputs processed for all rows before the next ones: 128 KiB of a panel, which stay in the L2
// cache. Sums stay in `c` meanwhile, exactly.
constexpr int64_t kDepth = 1024;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
// Not on the stack: g++ 12 does not know that the instruction reads all of it.
constexpr TileConfig kConfig;

constexpr int64_t kSumBytes = kGemmColumns * sizeof(float);          // From row to row
constexpr int64_t kPairBytes = kGemmColumns * 2 * sizeof(uint16_t);  // From pair to pair of inputs

// Tiles 0 to 3 are sums, all others are factors.
// clang-format off
#define SPILLWAY_TILES __attribute__((target("amx-tile,amx-bf16")))
// clang-format on

SPILLWAY_TILES void zero() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// c[16, 64]: a tile of activations times four of weights.
SPILLWAY_TILES void multiply_16(const uint16_t* a, int64_t row_bytes, int64_t depth,
                                const uint16_t* w, bool accumulate, float* c) {
  if (accumulate) {
    _tile_loadd(0, c, kSumBytes);
    _tile_loadd(1, c + 16, kSumBytes);
    _tile_loadd(2, c + 32, kSumBytes);
    _tile_loadd(3, c + 48, kSumBytes);
  } else {
    zero();
  }
  for (int64_t k = 0; k < depth; k += kInputs) {
    const uint16_t* b = w + k * kGemmColumns;
    _tile_loadd(4, a + k, row_bytes);
    _tile_loadd(5, b, kPairBytes);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, b + 32, kPairBytes);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, b + 64, kPairBytes);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, b + 96, kPairBytes);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, c, kSumBytes);
  _tile_stored(1, c + 16, kSumBytes);
  _tile_stored(2, c + 32, kSumBytes);
  _tile_stored(3, c + 48, kSumBytes);
}

// c[32, 32]: two tiles of activations times two of weights, each loaded for two products.
SPILLWAY_TILES void multiply_32(const uint16_t* a, int64_t row_bytes, int64_t depth,
                                const uint16_t* w, bool accumulate, float* c) {
  const uint16_t* below = a + kRows * row_bytes / static_cast<int64_t>(sizeof(uint16_t));
  float* const c_below = c + kRows * kGemmColumns;
  if (accumulate) {
    _tile_loadd(0, c, kSumBytes);
    _tile_loadd(1, c + 16, kSumBytes);
    _tile_loadd(2, c_below, kSumBytes);
    _tile_loadd(3, c_below + 16, kSumBytes);
  } else {
    zero();
  }
  for (int64_t k = 0; k < depth; k += kInputs) {
    const uint16_t* b = w + k * kGemmColumns;
    _tile_loadd(4, a + k, row_bytes);
    _tile_loadd(6, b, kPairBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 32, kPairBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, below + k, row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, kSumBytes);
  _tile_stored(1, c + 16, kSumBytes);
  _tile_stored(2, c_below, kSumBytes);
  _tile_stored(3, c_below + 16, kSumBytes);
}

}  // namespace

bool has_tiles() {
  static const bool has = [] {
    constexpr unsigned kFeatures = 7, kTiles = 1u << 24, kTilesBf16 = 1u << 22;  // EDX of 7.0
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(kFeatures, 0, &a, &b, &c, &d) == 0) return false;
    if ((d & kTiles) == 0 || (d & kTilesBf16) == 0) return false;
    // Linux lets a process use tiles on request; older kernels do not know the request.
    constexpr int kTileData = 18;
    return ::syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData) == 0;
  }();
  return has;
}

SPILLWAY_TILES void multiply_tiles(const uint16_t* a, int64_t rows, int64_t columns,
                                   const std::byte* panel, float* c) {
  _tile_loadconfig(&kConfig);
  const int64_t row_bytes = columns * static_cast<int64_t>(sizeof(uint16_t));
  for (int64_t k = 0; k < columns; k += kDepth) {
    const int64_t depth = std::min(kDepth, columns - k);
    const uint16_t* w = reinterpret_cast<const uint16_t*>(panel) + k * kGemmColumns;
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const uint16_t* from = a + row * columns + k;
      float* const to = c + row * kGemmColumns;
      if (rows - row <= kRows) {
        multiply_16(from, row_bytes, depth, w, k > 0, to);
      } else {
        multiply_32(from, row_bytes, depth, w, k > 0, to);
        multiply_32(from, row_bytes, depth, w + kGemmColumns, k > 0, to + kGemmColumns / 2);
      }
    }
  }
  _tile_release();
}

}  // namespace spillway::cpu

#else

namespace spillway::cpu {

bool has_tiles() {
  return false;
}
void multiply_tiles(const uint16_t*, int64_t, int64_t, const std::byte*, float*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
