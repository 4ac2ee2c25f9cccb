// The matrix products of the linear layers on a CPU, each with what it packs of activations and how
// it multiplies them by 64 outputs' weights: the fields and functions that linear.cc asks of every
// one. A product is of one layer and the rows of one pass; packed rows lie in `memory`, of
// row_bytes() for each, their number rounded up to kRowsMultiple.
//
// Packing: pack() takes the columns [column, column + strip.columns) of a strip of Strips(rows of
// the block, strip_rows()) that begins at row `first` of the pass. Columns come in parts of a
// multiple of kStretch (kernels/input_hadamard.h), the last one with what is left.
//
// Multiplying: multiply() fills rows of a tile of 64 outputs, and hands its parts to the taker as
// they are finished.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/base/checked_math.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/gemm_int8.h"
#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/strips.h"
#include "kernels/cpu/tile_taker.h"
#include "kernels/input_hadamard.h"
#include "kernels/tensor.h"

namespace spillway::cpu {

// Bytes of packed activations per pass over the weights, unless kGemmRowsMax rows take more: bounds
// scratch memory, and keeps the data that all threads reread for each panel in near caches: a
// core's share of a server's L3 cache is small, and with 16 MiB, products of 2048 rows ran at 0.6
// to 0.75 of this rate (tests/bench/linear_bench). The weights are read once for each 96 rows or
// more, which takes at most a quarter of the memory bandwidth. 512 rows of 8,192 inputs in 8 bits,
// with their scales, are one pass.
constexpr size_t kPackedBytesMax = size_t{9} << 19;

// Packing tasks per block of kGemmRowsMax rows.
constexpr int64_t kPackTasks = 4;

// What stays in a core's L2 cache beside a block of the other factor: weights that a task
// multiplies all blocks of rows by in turn, or activations.
constexpr int64_t kCachedBytes = int64_t{1} << 20;

// Most rows of a strip, of any product: sizes the memory in which a strip is normed.
constexpr int64_t kStripRowsMax = 24;

// Scratch memory is sized for a multiple of this: matrix units multiply this many rows.
constexpr uint64_t kRowsMultiple = 32;
static_assert(kRowsMultiple % kAmxRows == 0);
static_assert(kGemmRowsMax % kRowsMultiple == 0);

// Matmul of float32 activations with weights that are widened to float32. The strip of row r begins
// at float r * columns.
class F32Matmul {
 public:
  static constexpr bool kMultipliesHadamard = false;
  static size_t row_bytes(const WeightMatrix& w) {
    return static_cast<size_t>(w.columns) * sizeof(float);
  }
  static int64_t strip_rows() { return gemm_strip_rows(); }

  F32Matmul(std::byte* memory, int64_t /*rows*/, const WeightMatrix& weight)
      : packed_(reinterpret_cast<float*>(memory)), columns_(weight.columns) {}

  void pack(const ConstMatrixView& strip, int64_t first, int64_t column) const {
    pack_strip(reinterpret_cast<const float*>(strip.data), strip.stride, strip.rows, strip.columns,
               packed_ + first * columns_ + column * strip.rows);
  }
  void multiply(int64_t row, int64_t rows, Format format, const std::byte* panels, bool /*again*/,
                float* tile, const TileTaker& taker) const {
    multiply_tile(packed_ + row * columns_, rows, columns_, format, panels, tile, taker);
  }

 private:
  float* packed_;
  int64_t columns_;
};

// Matmul of bf16 activations with bf16 or quantised weights.
class Bf16Matmul {
 public:
  static constexpr bool kMultipliesHadamard = false;
  static size_t row_bytes(const WeightMatrix& w) {
    const int64_t sums = is_grouped(w.format) ? sum_groups(w.columns, group_of(w)) : 0;
    return static_cast<size_t>(pair_columns(w.columns)) * sizeof(uint32_t) +
           static_cast<size_t>(sums) * sizeof(float);
  }
  static int64_t strip_rows() { return kBf16StripRows; }

  Bf16Matmul(std::byte* memory, int64_t rows, const WeightMatrix& weight)
      : packed_{reinterpret_cast<uint32_t*>(memory)}, columns_(weight.columns) {
    if (!is_grouped(weight.format)) return;
    packed_.sums = reinterpret_cast<float*>(packed_.bf16_pairs + rows * pair_columns(columns_));
    packed_.sum_group = group_of(weight);
  }

  void pack(const ConstMatrixView& strip, int64_t first, int64_t column) const {
    Bf16Strips to = from(first);
    to.bf16_pairs += column / 2 * strip.rows;
    if (to.sums != nullptr) to.sums += column / to.sum_group * strip.rows;
    pack_bf16_strip(reinterpret_cast<const uint16_t*>(strip.data), strip.stride, strip.rows,
                    strip.columns, to);
  }
  void multiply(int64_t row, int64_t rows, Format format, const std::byte* panels, bool /*again*/,
                float* tile, const TileTaker& taker) const {
    multiply_bf16_tile(from(row), rows, columns_, format, panels, tile, taker);
  }

 private:
  static int64_t group_of(const WeightMatrix& w) { return format_traits(w.format).group; }
  Bf16Strips from(int64_t row) const {
    Bf16Strips strip = packed_;
    strip.bf16_pairs += row * pair_columns(columns_);
    if (strip.sums != nullptr) strip.sums += row * sum_groups(columns_, strip.sum_group);
    return strip;
  }

  Bf16Strips packed_;
  int64_t columns_;
};

// Matmul of activations in 8 bits with weights of 4 or 8 bits.
class Int8Matmul {
 public:
  static constexpr bool kMultipliesHadamard = true;
  static size_t row_bytes(const WeightMatrix& w) {
    // Of any bodies: those of a pass are chosen by its rows.
    const auto quads = static_cast<size_t>(int8_quads(w.format, w.columns));
    return round_up(quads, size_t{kInt8QuadsMultiple}) * sizeof(uint32_t) +
           static_cast<size_t>(int8_scales(w.format, w.columns)) * sizeof(float);
  }
  int64_t strip_rows() const { return bodies_.strip_rows; }

  Int8Matmul(std::byte* memory, int64_t rows, const WeightMatrix& weight)
      : bodies_(int8_bodies(rows)),
        row_quads_(int8_row_quads(bodies_, weight.format, weight.columns)),
        packed_{reinterpret_cast<uint32_t*>(memory),
                reinterpret_cast<float*>(reinterpret_cast<uint32_t*>(memory) + rows * row_quads_)},
        rows_(rows),
        columns_(weight.columns),
        format_(weight.format),
        hadamard_(weight.hadamard) {}

  void pack(const ConstMatrixView& strip, int64_t first, int64_t column) const {
    Int8Strips to = from(first);
    to.quads += column / 4 * strip.rows;
    to.scales += int8_scales(format_, column) * strip.rows;
    pack_int8_strip(bodies_, format_, strip.data, strip.dtype, strip.stride, strip.rows,
                    strip.columns, hadamard_, to);
  }
  // Expands weights in memory of so many bytes.
  size_t panels_bytes() const { return int8_scratch_bytes(bodies_, format_, rows_, columns_); }
  Int8Panels panels(const std::byte* packed, std::byte* memory) const {
    return int8_panels(bodies_, format_, rows_, packed, memory);
  }
  // `again`: these panels have been multiplied by the rows before.
  void multiply(int64_t row, int64_t rows, Format format, const Int8Panels& panels, bool again,
                float* tile, const TileTaker& taker) const {
    Int8Panels here = panels;
    here.filled = again;
    multiply_int8_tile(bodies_, format, from(row), rows, columns_, here, tile, taker);
  }

 private:
  Int8Strips from(int64_t row) const {
    return {packed_.quads + row * row_quads_,
            packed_.scales + row * int8_scales(format_, columns_)};
  }

  const Int8Bodies& bodies_;
  int64_t row_quads_;
  Int8Strips packed_;
  int64_t rows_, columns_;
  Format format_;
  bool hadamard_;
};

// Matmul of bf16 activations with bf16 weights by matrix units: tiles of 16 rows of 32 inputs, tile
// after tile of 16 rows. Inputs and rows are padded with zeros.
class TileMatmul {
 public:
  static constexpr bool kMultipliesHadamard = false;
  static size_t row_bytes(const WeightMatrix& w) {
    return static_cast<size_t>(padded_columns(w.layout, w.format, w.columns)) * sizeof(uint16_t);
  }
  static int64_t strip_rows() { return kAmxRows; }
  // Of a row of activations or of weights. A product that says it multiplies by the weights of
  // several times 64 outputs in a task.
  int64_t cached_row_bytes() const { return stride_; }
  // Rows that such a task multiplies by all of its weights before the next ones
  static constexpr int64_t kBlockRows = 2 * kAmxRows;

  TileMatmul(std::byte* memory, int64_t rows, const WeightMatrix& weight)
      : packed_(memory),
        rows_(rows),
        columns_(weight.columns),
        stride_(static_cast<int64_t>(row_bytes(weight))) {}

  void pack(const ConstMatrixView& strip, int64_t first, int64_t column) const {
    const int64_t end = first + strip.rows;
    const int64_t bytes = strip.columns * static_cast<int64_t>(sizeof(uint16_t));
    const int64_t begin = column * static_cast<int64_t>(sizeof(uint16_t));
    const int64_t padded = column + strip.columns == columns_ ? stride_ - begin : bytes;
    for (int64_t row = first; row < end; ++row) {
      pack_row(row, begin, strip.row(row - first), bytes, padded);
    }
    if (end < rows_) return;
    const int64_t all = (end + kAmxRows - 1) / kAmxRows * kAmxRows;
    for (int64_t row = end; row < all; ++row) pack_row(row, begin, nullptr, 0, padded);
  }
  void multiply(int64_t row, int64_t rows, Format, const std::byte* panels, bool again, float* tile,
                const TileTaker& taker) const {
    multiply_tiles(packed_ + row * stride_, rows, stride_ / static_cast<int64_t>(sizeof(uint16_t)),
                   panels, again, tile);
    taker.take(0, rows, 0, kGemmColumns);
  }

 private:
  // `bytes` of a row from byte `begin` on, and zeros up to `padded`.
  void pack_row(int64_t row, int64_t begin, const std::byte* from, int64_t bytes,
                int64_t padded) const {
    std::byte* to = packed_ + row / kAmxRows * kAmxRows * stride_ + row % kAmxRows * kAmxRowBytes +
                    begin / kAmxRowBytes * kAmxTileBytes;
    for (int64_t at = 0; at < padded; at += kAmxRowBytes, to += kAmxTileBytes) {
      const int64_t there = std::clamp<int64_t>(bytes - at, 0, kAmxRowBytes);
      if (there == kAmxRowBytes) {
        std::memcpy(to, from + at, static_cast<size_t>(kAmxRowBytes));
        continue;
      }
      if (there > 0) std::memcpy(to, from + at, static_cast<size_t>(there));
      std::memset(to + there, 0, static_cast<size_t>(kAmxRowBytes - there));
    }
  }

  std::byte* packed_;
  int64_t rows_, columns_;
  int64_t stride_;  // Bytes of a row
};

}  // namespace spillway::cpu
