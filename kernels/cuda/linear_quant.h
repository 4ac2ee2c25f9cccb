// Linear layers of few rows over quantised weights (linear_quant.cu).
#pragma once

#include "kernels/ops.h"

namespace spillway::cuda {

class CudaContext;

// Of odd shapes, which tensor cores do not take: more rows are expanded.
constexpr int64_t kFewRowsOdd = 32;

// Whether linear_quant() supports the arguments: quantised weights, activations of 16 bits, at most
// kFewRows rows, or kFewRowsOdd.
bool takes_linear_quant(const LinearArgs& args);

// REQUIRES: takes_linear_quant(args); the context has no error.
void linear_quant(CudaContext& context, const LinearArgs& args);

}  // namespace spillway::cuda
