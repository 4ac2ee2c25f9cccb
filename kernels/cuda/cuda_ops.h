// The CUDA bodies of kernels/ops.h. Called by ops.cc only, after its checks. A context with an
// error gets no more work. No CUDA type, so that ops.cc compiles without the toolkit;
// kernels/dispatch/no_cuda.cc stands in for them there.
#pragma once

#include "kernels/ops.h"

namespace spillway::cuda {

class CudaContext;

constexpr int64_t kHeadSizeMax = 256;  // Of attention()

// Around an op, for the trace of a traced device.
void begin_span(CudaContext& context, const char* op, const char* value_name, int64_t value);
void end_span(CudaContext& context);

void gather_rows(CudaContext& context, const GatherArgs& args);
void normalize(CudaContext& context, const NormArgs& args);
void convert_rows(CudaContext& context, const ConvertArgs& args);
void draw_columns(CudaContext& context, const DrawArgs& args);
void expand_rows(CudaContext& context, const ExpandArgs& args);
void linear(CudaContext& context, const LinearArgs& args);
void attention(CudaContext& context, const AttentionArgs& args);

}  // namespace spillway::cuda
