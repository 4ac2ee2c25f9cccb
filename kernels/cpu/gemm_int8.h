// Matrix product with 4-bit weights (kernels/weight_layout.h, kPanels16) by dot products of 8-bit
// integers: activations are rounded to 8 bits, up to twice the rate of bf16 pairs with AVX-512 VNNI
// (docs/benchmarks/README.md); with AVX2 not measured yet. Used only on request: it is the only
// matrix product that rounds activations further than their format (LLM.int8(), arXiv 2208.07339,
// section 2.1, scales of rows; here of each group of 64 inputs, as the weights have them).
//
// For each row and group g of 64 inputs: s = max |a| / 127, q = a / s rounded to nearest, and with
// weights n * scale + minimum (base/q4.h)
//
//   y = sum over groups of (scale * s) * sum(q n) + (s * sum(q)) * minimum
//
// Sums of integers are exact and groups are added in order, so a row has the same bits in any batch
// and by either instruction set. A NaN or infinite activation makes its row's outputs NaN or
// infinite; groups whose numbers are all below 1e-30 count as zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"

namespace spillway::cpu {

// Whether this CPU has instructions for it: AVX-512 VNNI, else AVX2.
bool has_int8();

// Most rows of a strip of packed activations (cpu/strips.h), by instruction set. REQUIRES:
// has_int8().
int64_t int8_strip_rows();

// Activations in 8 bits. `quads` is [strip][group][word, 8 a group][row in strip][2]: the four even
// inputs of those that a word of weights holds, then the four odd ones, a byte each. `scales` is
// [strip][group][row in strip][2]: s, then s * sum(q). A strip that begins at row r begins at
// quads + r * int8_quads and scales + r * int8_scales. Inputs are padded to groups with zeros.
struct Int8Strips {
  uint32_t* quads = nullptr;
  float* scales = nullptr;
};
constexpr int64_t kInt8Group = 64;     // Inputs that share a scale, as 4-bit weights have them
int64_t int8_quads(int64_t columns);   // Quads of a padded row
int64_t int8_scales(int64_t columns);  // Scales of a row

// Packs `height` rows of row-major `a`, kF32 or kBF16 (row stride `stride` elements), as the strip
// `strip`. REQUIRES: has_int8(); height <= int8_strip_rows().
void pack_int8_strip(const std::byte* a, DType format, int64_t stride, int64_t height,
                     int64_t columns, const Int8Strips& strip);

// c[rows, 64] = a[rows, columns], in Strips(rows, int8_strip_rows()), times four neighbouring
// panels of 4-bit weights. REQUIRES: has_int8();
// rows <= kGemmRowsMax (cpu/gemm_f32.h); c has 64 floats a row, 64-byte aligned.
void multiply_int8_tile(const Int8Strips& a, int64_t rows, int64_t columns, const std::byte* panels,
                        float* c);

// One instruction set's bodies (gemm_int8_vnni.cc, gemm_int8_avx2.cc), for gemm_int8.cc.
struct Int8Bodies {
  int64_t strip_rows;
  void (*pack)(const std::byte* a, DType format, int64_t stride, int64_t height, int64_t columns,
               const Int8Strips& strip);
  void (*multiply)(const Int8Strips& a, int64_t rows, int64_t columns, const std::byte* panels,
                   float* c);
};
extern const Int8Bodies kInt8Vnni, kInt8Avx2;

}  // namespace spillway::cpu
