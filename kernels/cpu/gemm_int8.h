// Matrix product with 4-bit weights (kernels/weight_layout.h, kPanels16) by dot products of 8-bit
// integers: activations are rounded to 8 bits, up to twice the rate of bf16 pairs with AVX-512 VNNI
// (docs/benchmarks/README.md); with AVX2 not measured yet. Used only on request: it is the only
// matrix product that rounds activations further than their format (LLM.int8(), arXiv 2208.07339,
// section 2.1, scales of rows; here of each group of inputs).
//
// For each row and group g of inputs, as the weights have them: s = max |a| / 127, q = a / s
// rounded to nearest, and with weights n * scale + minimum (base/quantized.h)
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

// Whether weights of this format are multiplied so: those of 4 bits.
constexpr bool takes_int8(Format format) {
  return format_traits(format).bits == 4;
}

// Activations in 8 bits, for weights of `format`. `quads` is [strip][group][word][row in strip][2]:
// the four even inputs of those that a word of weights holds, then the four odd ones, a byte each.
// `scales` is [strip][group][row in strip][2]: s, then s * sum(q). A strip that begins at row r
// begins at quads + r * int8_quads and scales + r * int8_scales. Inputs are padded to groups with
// zeros.
struct Int8Strips {
  uint32_t* quads = nullptr;
  float* scales = nullptr;
};
int64_t int8_quads(Format format, int64_t columns);   // Quads of a padded row
int64_t int8_scales(Format format, int64_t columns);  // Scales of a row

// Packs `height` rows of row-major `a`, kF32 or kBF16 (row stride `stride` elements), as the strip
// `strip`. REQUIRES: has_int8(); takes_int8(format); height <= int8_strip_rows().
void pack_int8_strip(Format format, const std::byte* a, DType type, int64_t stride, int64_t height,
                     int64_t columns, const Int8Strips& strip);

// c[rows, 64] = a[rows, columns], in Strips(rows, int8_strip_rows()), times four neighbouring
// panels of 4-bit weights. REQUIRES: has_int8(); takes_int8(format);
// rows <= kGemmRowsMax (cpu/gemm_f32.h); c has 64 floats a row, 64-byte aligned.
void multiply_int8_tile(Format format, const Int8Strips& a, int64_t rows, int64_t columns,
                        const std::byte* panels, float* c);

// One instruction set's bodies (gemm_int8_vnni.cc, gemm_int8_avx2.cc), for gemm_int8.cc.
struct Int8Bodies {
  int64_t strip_rows;
  void (*pack)(Format format, const std::byte* a, DType type, int64_t stride, int64_t height,
               int64_t columns, const Int8Strips& strip);
  void (*multiply)(Format format, const Int8Strips& a, int64_t rows, int64_t columns,
                   const std::byte* panels, float* c);
};
extern const Int8Bodies kInt8Vnni, kInt8Avx2;

}  // namespace spillway::cpu
