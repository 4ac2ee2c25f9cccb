// The CPU bodies of kernels/ops.h. Called by ops.cc only, after its checks.
#pragma once

#include "kernels/cpu/cpu_context.h"
#include "kernels/ops.h"

namespace spillway::cpu {

void gather_rows(CpuContext& context, const GatherArgs& args);
void normalize(CpuContext& context, const NormArgs& args);
void convert_rows(CpuContext& context, const ConvertArgs& args);
void draw_columns(CpuContext& context, const DrawArgs& args);
void expand_rows(CpuContext& context, const ExpandArgs& args);
void linear(CpuContext& context, const LinearArgs& args);
void attention(CpuContext& context, const AttentionArgs& args);

}  // namespace spillway::cpu
