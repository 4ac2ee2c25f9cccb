// Hadamard matrices over the inputs of linear layers: before the rows of a weight matrix are
// quantised, their columns are multiplied by orthogonal matrices, and linear() multiplies the
// inputs by the same ones (WeightMatrix::hadamard). The outputs are what they were, but what was
// large in a few inputs is spread over all of a block, so that inputs can be rounded to 8 bits with
// one scale a block (cpu/gemm_int8.h). On SmolLM2-135M this takes what 8-bit products cost from
// 1.6 % of perplexity to 0.2 %, without calibration (docs/benchmarks/history.md). It is QuIP's and
// QuaRot's incoherence processing (Chee et al. 2023, arXiv 2307.13304; Ashkboos et al. 2024,
// arXiv 2404.00456) with matrices of blocks, which any number of inputs can be cut into.
//
// The inputs are cut into blocks of 256, the rest into the largest powers of two that fit, in
// descending order. A block's matrix is the Walsh-Hadamard matrix H of its size b: number i of the
// product is the sum of (-1)^popcount(i & j) x[j]. Inputs are multiplied by H and a power of two f
// near 1 / sqrt(b), weights by H and 1 / (b f), which are exact in any binary format.
//
// Sums are taken over neighbours of distance 1, 2, 4, ..., b / 2, after the factor, in float32: on
// every device a row has the same bits. Pure functions, any thread.
#pragma once

#include <cstdint>

#include "kernels/base/format.h"

namespace spillway {

constexpr int64_t kHadamardMax = 256;

// Whether matrices of weights that are quantised to this format have it: formats of which a CPU
// makes 8-bit products, but for those whose codes may be a GGUF file's.
constexpr bool takes_hadamard(Format format) {
  return format == Format::kQ4 || format == Format::kQ8;
}

// The size of the block that begins at input `first` of `columns`.
constexpr int64_t hadamard_block(int64_t first, int64_t columns) {
  int64_t block = kHadamardMax;
  while (block > columns - first) block /= 2;
  return block;
}

// The factors of a block's inputs and weights.
constexpr float input_factor(int64_t block) {
  float factor = 1.0f;
  for (; block >= 4; block /= 4) factor /= 2;
  return factor;
}
constexpr float weight_factor(int64_t block) {
  return 1.0f / (static_cast<float>(block) * input_factor(block));
}

// Multiplies `block` numbers, a power of two, by `factor` and then by the Walsh-Hadamard matrix.
void multiply_by_hadamard_block(float factor, int64_t block, float* x);

// Multiplies a row, of inputs or of weights, in place: all of its blocks, or those from a multiple
// of kHadamardMax on.
enum class HadamardOf : uint8_t { kInputs, kWeights };
void multiply_by_hadamard(HadamardOf of, int64_t columns, float* row);

}  // namespace spillway
