#include "kernels/cpu/gemm_tiles.h"

#include "kernels/base/check.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_f32.h"

namespace spillway::cpu {

namespace {

constexpr int64_t kPanelOutputs = 16, kPanels = kGemmColumns / kPanelOutputs;
constexpr int64_t kInputs = 32;                              // Of a row of a tile, 64 bytes
constexpr int64_t kSumBytes = kGemmColumns * sizeof(float);  // From row to row of sums

// Bytes of a panel by which memory is asked for weights ahead of their product.
constexpr int64_t kAhead = 8 * kAmxTileBytes, kLine = 64;

// Tiles 0 to 3 are sums, all others are factors.
// clang-format off
#define SPILLWAY_TILES __attribute__((target("amx-tile,amx-bf16")))
// clang-format on

// Inputs that all rows are multiplied by before the next ones. More would not stay in the L2 cache
// for all rows; with fewer, tiles of sums wait in `c` too often, where they cost more than weights
// that come from the L2 cache instead of the L1 cache.
constexpr int64_t kDepthTiles = 2048 / kInputs;

// c[16 or 32, 32] = (or += with `accumulate`) one or two strips of activations times two panels, of
// each of which `bytes` are multiplied and `stride` is all. With two strips, each tile is loaded
// for two products.
template <int kStrips, bool kAsks>
SPILLWAY_TILES void multiply_panels(const std::byte* a, const std::byte* w, int64_t bytes,
                                    int64_t stride, bool accumulate, float* c) {
  const std::byte *const below = a + stride, *const beside = w + stride;
  float* const c_below = c + kAmxRows * kGemmColumns;
  // g++ 12 does not know that loads of tiles read memory.
  asm volatile("" ::: "memory");
  if (accumulate) {
    _tile_loadd(0, c, kSumBytes);
    _tile_loadd(1, c + kPanelOutputs, kSumBytes);
    if constexpr (kStrips == 2) {
      _tile_loadd(2, c_below, kSumBytes);
      _tile_loadd(3, c_below + kPanelOutputs, kSumBytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t at = 0; at < bytes; at += kAmxTileBytes) {
    _tile_loadd(4, a + at, kAmxRowBytes);
    _tile_loadd(6, w + at, kAmxRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, beside + at, kAmxRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kStrips == 2) {
      _tile_loadd(5, below + at, kAmxRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    if constexpr (kAsks) {
      // After these panels the same inputs of the next two are read.
      const int64_t next = at + kAhead, ahead = next < bytes ? next : next - bytes + 2 * stride;
#pragma GCC unroll 16
      for (int64_t line = 0; line < kAmxTileBytes; line += kLine) {
        __builtin_prefetch(w + ahead + line, 0, 2);
        __builtin_prefetch(beside + ahead + line, 0, 2);
      }
    }
  }
  _tile_stored(0, c, kSumBytes);
  _tile_stored(1, c + kPanelOutputs, kSumBytes);
  if constexpr (kStrips == 2) {
    _tile_stored(2, c_below, kSumBytes);
    _tile_stored(3, c_below + kPanelOutputs, kSumBytes);
  }
}

}  // namespace

SPILLWAY_TILES void multiply_tiles(const std::byte* a, int64_t rows, int64_t columns,
                                   const std::byte* panels, bool filled, float* c) {
  _tile_loadconfig(&kWholeTiles);
  const int64_t stride = columns / kInputs * kAmxTileBytes;  // Of a strip or panel
  for (int64_t first = 0; first < stride; first += kDepthTiles * kAmxTileBytes) {
    const int64_t bytes = std::min(kDepthTiles * kAmxTileBytes, stride - first);
    for (int64_t row = 0; row < rows; row += 2 * kAmxRows) {
      const std::byte* const from = a + row / kAmxRows * stride + first;
      const bool asks = row == 0 && !filled, accumulate = first > 0;
      for (int64_t panel = 0; panel < kPanels; panel += 2) {
        const std::byte* const w = panels + panel * stride + first;
        float* const to = c + row * kGemmColumns + panel * kPanelOutputs;
        if (rows - row <= kAmxRows) {
          asks ? multiply_panels<1, true>(from, w, bytes, stride, accumulate, to)
               : multiply_panels<1, false>(from, w, bytes, stride, accumulate, to);
        } else {
          asks ? multiply_panels<2, true>(from, w, bytes, stride, accumulate, to)
               : multiply_panels<2, false>(from, w, bytes, stride, accumulate, to);
        }
      }
    }
  }
  _tile_release();
}

}  // namespace spillway::cpu

#else

namespace spillway::cpu {

void multiply_tiles(const std::byte*, int64_t, int64_t, const std::byte*, bool, float*) {
  SPILLWAY_CHECK(false);
}

}  // namespace spillway::cpu

#endif
