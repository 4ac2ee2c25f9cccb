// Linear layers of few rows over 4-bit weights (linear_q4.cu).
#pragma once

#include "kernels/ops.h"

namespace spillway::cuda {

class CudaContext;

// Whether linear_q4() supports the arguments: 4-bit weights, activations of 16 bits, at most
// kFewRows rows.
bool takes_linear_q4(const LinearArgs& args);

// REQUIRES: takes_linear_q4(args); the context has no error.
void linear_q4(CudaContext& context, const LinearArgs& args);

}  // namespace spillway::cuda
