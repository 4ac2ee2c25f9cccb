// The launches of attention.cu: prompts and decode steps have files of their own.
#pragma once

#include <cstdint>

namespace spillway::cuda {

class CudaContext;
struct AttentionOnDevice;

// `items` decode steps, none of which attends to more than `rows_max` rows.
void launch_decode(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                   int64_t rows_max);

// `items` prompts of at most `tokens_max` tokens.
void launch_prompts(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                    int64_t tokens_max);

}  // namespace spillway::cuda
