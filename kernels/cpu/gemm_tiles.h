// Matrix product of bf16 activations with packed bf16 weights (kernels/weight_layout.h, kPanels64)
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

// Rows that are multiplied together: packed activations are padded to a multiple of it.
constexpr int64_t kTileRows = 32;

// c[rows, 64] = a[rows, columns], dense, times a panel. `columns` is the padded number of inputs.
// Reads and writes whole multiples of kTileRows rows.
// REQUIRES: has_amx_bf16() (cpu/amx.h); rows <= kGemmRowsMax (cpu/gemm_f32.h); c has 64 floats a
// row.
void multiply_tiles(const uint16_t* a, int64_t rows, int64_t columns, const std::byte* panel,
                    float* c);

}  // namespace spillway::cpu
