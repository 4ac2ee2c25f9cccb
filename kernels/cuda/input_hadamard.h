// Inputs of linear layers multiplied by Hadamard matrices (kernels/input_hadamard.h), on the device
// (input_hadamard.cu).
#pragma once

#include "kernels/tensor.h"

namespace spillway::cuda {

class CudaContext;

// The rows of `in` multiplied by Hadamard matrices, rounded to in's format, in the context's input
// scratch until the next call. Null data: there was an error, which the context has. The caller
// checks the launch.
ConstMatrixView inputs_by_hadamard(CudaContext& context, const ConstMatrixView& in);

}  // namespace spillway::cuda
