// The CUDA bodies of kernels/ops.h, one overload per op, and the one function through which ops.cc
// calls them after its checks: kernels/dispatch/no_cuda.cc stands in for that function in a build
// without CUDA. No CUDA type, so that ops.cc compiles without the toolkit.
#pragma once

#include <cstdint>
#include <variant>

#include "kernels/ops.h"

namespace spillway::cuda {

class CudaContext;

constexpr int64_t kHeadSizeMax = 256;  // Limit of attention()

// The arguments of any op.
using OpArgs = std::variant<const GatherArgs*, const NormArgs*, const RotateArgs*, const GateArgs*,
                            const ConvertArgs*, const SampleArgs*, const ExpandArgs*,
                            const LinearArgs*, const AttentionArgs*>;

// Runs an op; the trace of a traced device shows its name and number of rows.
void run_op(CudaContext& context, const char* name, int64_t rows, const OpArgs& args);

// A context with an error gets no more work.
void run(CudaContext& context, const GatherArgs& args);
void run(CudaContext& context, const NormArgs& args);
void run(CudaContext& context, const RotateArgs& args);
void run(CudaContext& context, const GateArgs& args);
void run(CudaContext& context, const ConvertArgs& args);
void run(CudaContext& context, const SampleArgs& args);
void run(CudaContext& context, const ExpandArgs& args);
void run(CudaContext& context, const LinearArgs& args);
void run(CudaContext& context, const AttentionArgs& args);

}  // namespace spillway::cuda
