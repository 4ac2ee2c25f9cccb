// The launches of attention.cu: prompts and decode steps have files of their own.
#pragma once

#include <cstdint>

namespace spillway::cuda {

class CudaContext;
struct AttentionOnDevice;

// `items` decode steps, none of which attends to more than `rows_max` rows; `scored`: some have a
// budget by score.
void launch_decode(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                   int64_t rows_max, bool scored);

// `items` prompts of at most `tokens_max` tokens: output, and the rows that stay in the cache.
void launch_prompts(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                    int64_t tokens_max);

// The part of it that tensor cores can do, for narrow outputs and the usual head sizes: output and,
// where a.statistics is there, statistics and column sums.
bool can_tile(const AttentionOnDevice& a);
void launch_prompt_tiles(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                         int64_t tokens_max);

}  // namespace spillway::cuda
