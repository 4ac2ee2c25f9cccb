#include "kernels/cpu/gemm_tiles.h"

#include "kernels/base/check.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_f32.h"

namespace spillway::cpu {

namespace {

constexpr int64_t kRows = kAmxRows;
constexpr int64_t kInputs = 32;  // Inputs in a row of a tile, 64 bytes

// Inputs processed for all rows before the next ones: 128 KiB of a panel, which stay in the L2
// cache. Sums stay in `c` meanwhile, exactly.
constexpr int64_t kDepth = 1024;

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

SPILLWAY_TILES void multiply_tiles(const uint16_t* a, int64_t rows, int64_t columns,
                                   const std::byte* panel, float* c) {
  _tile_loadconfig(&kWholeTiles);
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

void multiply_tiles(const uint16_t*, int64_t, int64_t, const std::byte*, float*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
