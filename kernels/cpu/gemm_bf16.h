// Matrix product of bf16 activations with packed bf16 or quantised weights
// (kernels/weight_layout.h, kPanels16) by dot products of bf16 pairs (VDPBF16PS), for CPUs where
// these beat float32: twice its rate on Zen 4 and later.
//
// A quantised weight is n * scale + minimum (base/quantized.h) and n, 0 to 255, is exact in bf16,
// so a group of inputs gives scale * sum(a n) + minimum * sum(a): no weight is rounded, and
// expanding a pair of 4-bit weights takes two instructions for 16 outputs. Where a row has one
// scale (base/quantized_rows.h), all inputs give scale * sum(a n). Sums are float32.
//
// Every output adds its pairs in order (quantised: groups in order, pairs in order within),
// whatever the number of rows or threads: a row's bits do not depend on the rest of its batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"
#include "kernels/cpu/tile_taker.h"

namespace spillway::cpu {

// Whether this CPU has the instructions (AVX-512 with BF16 and VBMI).
bool has_bf16_dot();

// Whether these instructions give the fastest matrix product on this CPU: on AMD's cores. Intel's
// vector units run them at half the rate of float32 (Emerald Rapids: oneDNN 177 GFLOP/s against
// 325), and its matrix units, where the CPU has them, beat both.
bool bf16_dot_is_fastest();

// Most rows of a strip of packed activations (cpu/strips.h).
constexpr int64_t kBf16StripRows = 12;

// Activations as strips, [strip][pair of inputs][row in strip], and the sum of each group of
// `sum_group` inputs, [strip][group][row in strip]. A strip that begins at row r begins at
// bf16_pairs + r * pair_columns and sums + r * sum_groups. Inputs are padded to a multiple of 64
// with zeros. `sums` is for weights quantised in groups, by their group; else null.
struct Bf16Strips {
  uint32_t* bf16_pairs = nullptr;
  float* sums = nullptr;
  int64_t sum_group = 0;
};
int64_t pair_columns(int64_t columns);  // Pairs of a padded row
int64_t sum_groups(int64_t columns, int64_t sum_group);

// Packs `height` rows of row-major bf16 `a` (row stride `stride` elements) as the strip `strip`.
// REQUIRES: has_bf16_dot(); height <= kBf16StripRows.
void pack_bf16_strip(const uint16_t* a, int64_t stride, int64_t height, int64_t columns,
                     const Bf16Strips& strip);

// c[rows, 64] = a[rows, columns], in Strips(rows, kBf16StripRows), times four neighbouring panels
// of `format`, kBF16 or quantised; `taker` is told which rows and columns of `c` are finished.
// REQUIRES: has_bf16_dot(); rows <= kGemmRowsMax (cpu/gemm_f32.h); c has 64 floats a row, 64-byte
// aligned.
void multiply_bf16_tile(const Bf16Strips& a, int64_t rows, int64_t columns, Format format,
                        const std::byte* panels, float* c, const TileTaker& taker);

// The same with panels of bf16 that are not weights but a part of the product's inputs: with
// `accumulate` it is added to c.
void multiply_bf16_pairs(const Bf16Strips& a, int64_t rows, int64_t columns, const uint32_t* panels,
                         bool accumulate, float* c);

// multiply_bf16_tile() of weights quantised in groups, and of kQ8's, called by that function.
void multiply_bf16_quantized_tile(const Bf16Strips& a, int64_t rows, int64_t columns, Format format,
                                  const std::byte* panels, float* c);
void multiply_bf16_q8_tile(const Bf16Strips& a, int64_t rows, int64_t columns,
                           const std::byte* panels, float* c);

}  // namespace spillway::cpu
