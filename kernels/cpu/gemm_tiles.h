// Matrix product of bf16 activations with packed bf16 weights (kernels/weight_layout.h, kPanels16)
// by the matrix units of Intel's server CPUs (AMX): TDPBF16PS adds the products of two tiles, 16
// rows of 32 inputs and 16 outputs of them, to a tile of float32 sums. On CPUs with these units,
// they beat every other backend here.
//
// Every output is one chain of these sums over the inputs in order, whatever the number of rows or
// threads: a row's bits do not depend on the rest of its batch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway::cpu {

// c[rows, 64] = a[rows, columns] times four neighbouring panels. `a` is packed as tiles,
// [row / 16][column / 32][row % 16][column % 32], and both it and `c` have whole strips of 16 rows,
// which are read, or written. `columns` is the padded number of inputs. `filled`: these panels have
// been multiplied before, so that they are in a near cache.
// REQUIRES: has_amx_bf16() (cpu/amx.h); rows <= kGemmRowsMax (cpu/gemm_f32.h); c has 64 floats a
// row.
void multiply_tiles(const std::byte* a, int64_t rows, int64_t columns, const std::byte* panels,
                    bool filled, float* c);

}  // namespace spillway::cpu
