// Matrix product of float32 activations with packed weights (kernels/weight_layout.h, kPanels16),
// on any x86: the weights' format is widened in registers (with AVX2 or better, for several strips
// of rows by the first one, into the L1 cache), so 2-byte weights cost 2 bytes of memory traffic
// and no expansion pass. Used for every format unless the CPU multiplies bf16 faster than float32
// (cpu/gemm_bf16.h, cpu/gemm_tiles.h).
//
// Every output is one chain of fused multiply-adds over k in order, whatever the number of rows or
// threads: a token's result does not depend on the rest of its batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/format.h"
#include "kernels/cpu/tile_taker.h"
#include "kernels/weight_layout.h"

namespace spillway::cpu {

// The unit of work: up to 96 rows of activations times 64 outputs (four panels).
constexpr int64_t kGemmRowsMax = 96;
constexpr int64_t kGemmColumns = 64;

// Most rows of a strip of packed activations (cpu/strips.h), on this CPU's best instruction set.
int64_t gemm_strip_rows();

// Packs `height` x `columns` of row-major float32 (row stride `stride` floats) as one strip,
// [column][row]. Writes height * columns floats. REQUIRES: height <= 16.
void pack_strip(const float* a, int64_t stride, int64_t height, int64_t columns, float* packed);

// Packs all of Strips(rows, gemm_strip_rows()), one after the other.
void pack_strips(const float* a, int64_t stride, int64_t rows, int64_t columns, float* packed);

// c[rows, 64] = a[rows, columns], in Strips(rows, gemm_strip_rows()),
// times four neighbouring panels; `taker` is told which rows and columns of `c` are finished.
// `columns` is the true number of inputs. REQUIRES: rows <= kGemmRowsMax; c has 64 floats a row,
// 64-byte aligned.
void multiply_tile(const float* packed_a, int64_t rows, int64_t columns, Format format,
                   const std::byte* panels, float* c, const TileTaker& taker);

}  // namespace spillway::cpu
