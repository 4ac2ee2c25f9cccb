// Linear layers of few rows over quantised weights (linear_quant.cu).
#pragma once

#include "kernels/ops.h"

namespace spillway::cuda {

class CudaContext;

// Whether linear_quant() supports the arguments: quantised weights, activations of 16 bits, at most
// kFewRows rows.
bool takes_linear_quant(const LinearArgs& args);

// REQUIRES: takes_linear_quant(args); the context has no error.
void linear_quant(CudaContext& context, const LinearArgs& args);

}  // namespace spillway::cuda
