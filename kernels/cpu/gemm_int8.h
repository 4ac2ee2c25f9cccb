// Matrix product with weights of 4 bits (kernels/weight_layout.h, kPanels16), and with those of 8
// bits and one scale a row (kernels/q8_panels.h), by dot products of 8-bit integers: activations
// are rounded to 8 bits, for up to twice the rate of bf16 pairs with AVX-512 VNNI, and four times
// that of float32 (docs/benchmarks/README.md). It is the only matrix product that rounds
// activations further than their format (LLM.int8(), arXiv 2208.07339, section 2.1, scales of rows;
// here of each stretch of 256 inputs, kernels/integer_groups.h).
//
// For each row and stretch: s = max |a| / 127, q = a / s rounded to nearest, and with weights
// n * scale + minimum (base/quantized.h)
//
//   y = sum over stretches of s * (sum over groups of minimum * sum(q) + scale * sum(q n))
//
// and with weights b * w, w the scale of a row of weights (base/quantized_rows.h)
//
//   y = w * (sum over stretches of s * sum(q b))
//
// A NaN or infinite activation makes its row's outputs NaN or infinite; stretches whose numbers are
// all below 1e-30 count as zero.
//
// Two kernels compute the products with 4-bit weights, and a row has the same bits by either, so in
// any batch, and by any instruction set:
//
//   fused    few rows: expands codes in registers, sums each group in integers, and the groups of a
//            stretch in float, one after another, as written above
//   tile     many rows: where all groups of two panels are integers (kernels/integer_groups.h), a
//            pass expands them to bytes b = n * s' + z, where scale = s' * unit and minimum =
//            z * unit, once for all of its rows, and sums a whole stretch of them in integers:
//            y = sum over stretches of s * (unit * sum(q b))
//
// They agree because what stands in the parentheses is the same number without any rounding: in
// units of the stretch it is an integer, and so is every sum and product on the way to it in the
// fused kernel; all of them are at most 256 * 127 * 128 + 64 * 127 * 128 < 2^24 (a stretch's sum of
// q b, and a group's part of which only minimum * sum(q) was added yet), so float32 holds them
// exactly, times a power of two. Both then add s * that in one fused multiply-add a stretch.
// Weights whose groups are not integers, as those of GGUF files whose codes were kept, are
// multiplied by the fused kernel alone.
//
// Matrix units (gemm_int8_amx.cc) sum the tile's integers of many rows, with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"
#include "kernels/cpu/tile_taker.h"
#include "kernels/integer_groups.h"
#include "kernels/q8_panels.h"

namespace spillway::cpu {

// Whether this CPU has instructions for it: AVX-512 VNNI, AVX-VNNI, else AVX2; for many rows, AMX.
bool has_int8();
bool has_avx_vnni();
bool has_avx512_vnni();

// Activations in 8 bits, for weights of `format`. `quads` is [strip][quad][row in strip], four
// inputs of a byte each: for weights of 4 bits, of every eight inputs first the even ones, then the
// odd ones, as words of weights part into them. `scales` is [strip][stretch] of
//
//   float s[row in strip]
//   int32 start[row in strip]                  bits of 1.5 * 2^23, minus 128 * sum(q), for bytes of
//                                              weights + 128
//   float sum[group in stretch][row in strip]  sum(q) of a group, for weights of 4 bits
//
// A strip that begins at row r begins at quads + r * int8_row_quads and scales + r * int8_scales.
// Inputs are padded with zeros: to groups, or to tiles.
//
// Matrix units take [strip][16 quads][row in strip][quad], tiles of 64 inputs, and may read 64
// bytes beyond the last strip.
struct Int8Strips {
  uint32_t* quads = nullptr;
  float* scales = nullptr;
};
constexpr int64_t int8_group(Format format) {
  return is_grouped(format) ? format_traits(format).group : kQ8ColumnMultiple;
}
// Numbers of a row and stretch in `scales`, of a row there, and quads of a row of whole groups.
constexpr int64_t int8_stretch_scales(Format format) {
  return 2 + (is_grouped(format) ? kStretch / int8_group(format) : 0);
}
int64_t int8_scales(Format format, int64_t columns);
int64_t int8_quads(Format format, int64_t columns);

// A stretch of two neighbouring panels as bytes.
struct alignas(64) ExpandedPair {
  std::byte bytes[2][16 * kStretch];  // [panel][quad][16 outputs][4 inputs], + 128
  float units[2][16];
  bool integers;  // Whether they are: if not, the rest is not set.
};

// Four neighbouring panels of weights, as multiply_int8_tile() takes them.
struct Int8Panels {
  const std::byte* packed = nullptr;  // As they are stored
  ExpandedPair* expanded = nullptr;   // [pair][stretch] if `kept`, else [pair]; null: fused kernels
  bool kept = false;                  // For the blocks of rows that follow
  bool filled = false;                // By the block before, which has read the weights
};

// One instruction set's bodies (gemm_int8_vnni.cc, gemm_int8_avx_vnni.cc, gemm_int8_avx2.cc,
// gemm_int8_amx.cc): what one has packed, it multiplies itself.
struct Int8Bodies {
  int64_t strip_rows;   // Most rows of a strip of packed activations (cpu/strips.h)
  int64_t expand_rows;  // The least for which expanded panels gain
  void (*pack)(Format format, const std::byte* a, DType type, int64_t stride, int64_t height,
               int64_t columns, bool hadamard, const Int8Strips& strip);
  void (*multiply)(Format format, const Int8Strips& a, int64_t rows, int64_t columns,
                   const Int8Panels& panels, float* c, const TileTaker& taker);
  int64_t quad_multiple = 1;  // Of quads of a row; divides kInt8QuadsMultiple
};
constexpr int64_t kInt8QuadsMultiple = 16;
extern const Int8Bodies kInt8Vnni, kInt8AvxVnni, kInt8Avx2, kInt8Amx;

// Those for a pass of `rows` rows. REQUIRES: has_int8().
const Int8Bodies& int8_bodies(int64_t rows);

int64_t int8_row_quads(const Int8Bodies& bodies, Format format, int64_t columns);

// Packs `height` rows of row-major `a`, kF32 or kBF16 (row stride `stride` elements), as the strip
// `strip`; with `hadamard` after multiplying them by Hadamard matrices (kernels/input_hadamard.h),
// whose blocks are the stretches. REQUIRES: takes_int8(format); height <= bodies.strip_rows.
void pack_int8_strip(const Int8Bodies& bodies, Format format, const std::byte* a, DType type,
                     int64_t stride, int64_t height, int64_t columns, bool hadamard,
                     const Int8Strips& strip);

// How a pass of `rows` rows multiplies: weights of 4 bits are expanded only if there are enough
// rows to gain by it. `scratch` holds int8_scratch_bytes() and is 64-byte aligned. REQUIRES:
// takes_int8(format).
size_t int8_scratch_bytes(const Int8Bodies& bodies, Format format, int64_t rows, int64_t columns);
constexpr size_t int8_scratch_bytes_max(int64_t columns) {
  return 2 * static_cast<size_t>((columns + kStretch - 1) / kStretch) * sizeof(ExpandedPair);
}
Int8Panels int8_panels(const Int8Bodies& bodies, Format format, int64_t rows,
                       const std::byte* packed, std::byte* scratch);

// c[rows, 64] = a[rows, columns], in Strips(rows, bodies.strip_rows), times four panels; `taker` is
// told which rows and columns of `c` are finished. REQUIRES: takes_int8(format); rows <=
// kGemmRowsMax (cpu/gemm_f32.h); c has 64 floats a row, 64-byte aligned.
void multiply_int8_tile(const Int8Bodies& bodies, Format format, const Int8Strips& a, int64_t rows,
                        int64_t columns, const Int8Panels& panels, float* c,
                        const TileTaker& taker);

// Parts of kInt8Vnni that kInt8Amx works with, of two neighbouring panels from `panel` on and one
// stretch: expands them, or adds their products with one strip of that stretch to `c`.
struct Int8Parts {
  void (*expand)(Format format, const std::byte* packed, int64_t columns, int64_t panel,
                 int64_t stretch, ExpandedPair& to);
  void (*fused)(Format format, const Int8Strips& strip, int64_t height, const std::byte* packed,
                int64_t columns, int64_t panel, int64_t stretch, float* c);
};
extern const Int8Parts kInt8VnniParts;

}  // namespace spillway::cpu
