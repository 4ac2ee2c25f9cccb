// The CPU bodies of kernels/ops.h, one overload per op. Called by ops.cc only, after its checks.
#pragma once

#include "kernels/cpu/cpu_context.h"
#include "kernels/ops.h"

namespace spillway::cpu {

// Whether so many outputs are whole tiles of a linear layer, 64 each.
bool has_whole_tiles(int64_t outputs);

void run(CpuContext& context, const GatherArgs& args);
void run(CpuContext& context, const NormArgs& args);
void run(CpuContext& context, const RotateArgs& args);
void run(CpuContext& context, const GateArgs& args);
void run(CpuContext& context, const ConvertArgs& args);
void run(CpuContext& context, const SampleArgs& args);
void run(CpuContext& context, const ExpandArgs& args);
void run(CpuContext& context, const LinearArgs& args);
// REQUIRES: has_whole_tiles(outputs of a half).
void run(CpuContext& context, const GatedLinearArgs& args);
void run(CpuContext& context, const AttentionArgs& args);

}  // namespace spillway::cpu
