// Kernel launches that attention.cu makes; prompts and decode steps have files of their own.
#pragma once

#include <cstdint>

namespace spillway {
struct AttentionArgs;
}

namespace spillway::cuda {

class CudaContext;
struct AttentionOnDevice;

// Decode steps run in parts whose partial results fit this many bytes.
constexpr int64_t kDecodeScratchBytes = int64_t{32} << 20;

// attention() with another bound on these bytes.
void attention_within(CudaContext& context, const AttentionArgs& args, int64_t scratch_bytes);

// `items` decode steps, none of which attends to more than `rows_max` rows; `scored`: some have a
// budget by score. Runs in parts of one step or more.
void launch_decode(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                   int64_t rows_max, bool scored, int64_t scratch_bytes);

// Whole prompts of which only a part stays in the cache, and prompts whose last chunk moves its
// rows, run in parts whose rows fit this many bytes of scratch.
constexpr int64_t kPromptScratchBytes = int64_t{64} << 20;

// Sums of the weights of a prompt's first `count` positions, by KV head; from null: zeros.
struct FirstSums {
  const float* from;
  int64_t from_stride;
  float* to;
  int64_t to_stride;
  int64_t count;
};
// Copies them, for a prompt that goes on from there.
void launch_first_sums(CudaContext& context, const FirstSums& sums, int64_t kv_heads);

// Stores the rows of `items` prompts, chunks or drafts, none of more than `tokens_max` tokens,
// where they are read.
void launch_store(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                  int64_t tokens_max);

// `items` prompts or chunks, none of more than `tokens_max` tokens, `keys_max` keys up to its end:
// stores their rows where they are read, and computes the output and, where a.statistics is not
// null, sums of weights.
void launch_prompts(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                    int64_t tokens_max, int64_t keys_max);

// Makes snap's scores of the sums of `items` prompts that have ended, where their budgets ask for
// it.
void launch_snap(CudaContext& context, const AttentionOnDevice& a, int64_t items);

// Keeps what stays of `items` prompts that have ended, under limited budgets; `chosen`: some keep
// more than the last rows; `moved`: some have their rows in the cache.
void launch_keep(CudaContext& context, const AttentionOnDevice& a, int64_t items, int64_t keys_max,
                 bool chosen, bool moved);

// Whether tensor cores can compute the prompts: narrow outputs and the usual head sizes.
// launch_prompt_tiles() computes the output and, where a.statistics is not null, statistics and
// column sums.
bool can_tile(const AttentionOnDevice& a);
void launch_prompt_tiles(CudaContext& context, const AttentionOnDevice& a, int64_t items,
                         int64_t tokens_max, int64_t keys_max);

}  // namespace spillway::cuda
