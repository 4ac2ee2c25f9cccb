// The matrix units of Intel's server CPUs (AMX): eight tiles of up to 16 rows of 64 bytes, and
// instructions that add the product of two of them to a third.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace spillway::cpu {

// Whether this CPU has the units, for bf16 and for 8-bit integers, and Linux lets this process use
// them. (Nothing else is in amx.cc: a test program that emulates the instructions has definitions
// of its own, tests/support/amx_emulator.cc.)
bool has_amx_bf16();
bool has_amx_int8();

constexpr int64_t kAmxRows = 16;      // Most rows of a tile
constexpr int64_t kAmxRowBytes = 64;  // Of a row
constexpr int64_t kAmxTileBytes = kAmxRows * kAmxRowBytes;

// What LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Tiles of whole rows: those of `tall`, a bit each, have kAmxRows rows, the others `rows`.
constexpr TileConfig tile_config(int64_t rows, unsigned tall = 0) {
  TileConfig config;
  for (unsigned tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = static_cast<uint16_t>(kAmxRowBytes);
    config.rows[tile] = static_cast<uint8_t>((tall >> tile & 1) != 0 ? kAmxRows : rows);
  }
  return config;
}

// Not to be made on the stack: g++ 12 does not know that the instruction reads all of it.
inline constexpr TileConfig kWholeTiles = tile_config(kAmxRows);

// A configuration for each number of rows up to kAmxRows.
template <unsigned kTall>
inline constexpr auto kTilesByRows = [] {
  std::array<TileConfig, kAmxRows> all{};
  for (int64_t rows = 1; rows <= kAmxRows; ++rows) {
    all[static_cast<size_t>(rows - 1)] = tile_config(rows, kTall);
  }
  return all;
}();

}  // namespace spillway::cpu
