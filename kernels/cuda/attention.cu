// Attention on the device: a call's items are passed as kernel parameters if few, else uploaded;
// prompts and decode steps have launches of their own.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"

namespace spillway::cuda {

namespace {

AttentionOnDevice view_of(const AttentionArgs& args) {
  const KvLayout& kv = args.kv;
  AttentionOnDevice a{};
  a.qkv = reinterpret_cast<const float*>(args.qkv.data);
  a.qkv_stride = args.qkv.stride;
  a.out = args.out.data;
  a.out_stride = args.out.stride;
  a.out_dtype = args.out.dtype;
  a.kv_format = kv.format;
  a.heads = args.heads;
  a.kv_heads = kv.heads;
  a.head_size = kv.head_size;
  a.row_bytes = static_cast<int64_t>(kv.row_bytes());
  a.run_bytes = static_cast<int64_t>(kv.run_bytes());
  a.block_bytes = static_cast<int64_t>(kv.block_bytes());
  a.scale = 1.0f / std::sqrt(static_cast<float>(kv.head_size));
  return a;
}

// Calls launch() for as many of the items at once as fit.
template <class Launch>
void for_parts(CudaContext& context, AttentionOnDevice& a, std::span<const ItemOnDevice> items,
               const Launch& launch) {
  if (items.size() <= static_cast<size_t>(kFewItems)) {
    std::copy(items.begin(), items.end(), a.few);
    a.items = nullptr;
    if (!items.empty()) launch(static_cast<int64_t>(items.size()));
    return;
  }
  constexpr size_t kEach = CudaContext::kUploadCount<ItemOnDevice>;
  for (size_t first = 0; first < items.size(); first += kEach) {
    const auto part = items.subspan(first, std::min(kEach, items.size() - first));
    a.items = context.upload(part);
    if (!context.status().ok()) return;
    launch(static_cast<int64_t>(part.size()));
  }
}

}  // namespace

void run(CudaContext& context, const AttentionArgs& args) {
  attention_within(context, args, kDecodeScratchBytes);
}

void attention_within(CudaContext& context, const AttentionArgs& args, int64_t scratch_bytes) {
  if (!context.ready()) return;
  std::vector<ItemOnDevice> prompts, steps;
  int64_t tokens_max = 0, rows_max = 0, sums = 0;
  bool scored = false;  // Some decode step's budget is by score.
  bool chosen = false;  // Some prompt keeps positions beside its last ones.
  for (const AttentionItem& item : args.items) {
    const KvBudget& budget = item.budget;
    const ItemOnDevice one{.first_row = item.first_row,
                           .tokens = item.tokens,
                           .position = item.position,
                           .kv = item.kv,
                           .state = item.state,
                           .recent = budget.recent,
                           .kept = budget.kept,
                           .scored = budget.scored(),
                           .rows = budget.attended(item.position),
                           .slot = budget.slot(item.position),
                           .sums = nullptr};
    (item.position == 0 ? prompts : steps).push_back(one);
    if (item.position > 0) {
      rows_max = std::max(rows_max, one.rows);
      scored = scored || one.scored;
    } else {
      tokens_max = std::max(tokens_max, item.tokens);
      chosen = chosen || one.kept > 0;
      if (one.scored) sums += args.kv.heads * item.tokens;
    }
  }
  AttentionOnDevice a = view_of(args);
  if (!prompts.empty()) {
    if (sums > 0) {
      const int64_t statistics = args.qkv.rows * args.heads * 2;
      auto* scratch = reinterpret_cast<float*>(
          context.scratch(static_cast<size_t>(statistics + sums) * sizeof(float)));
      if (scratch == nullptr) return;  // The context has the reason.
      a.statistics = scratch;
      scratch += statistics;
      for (ItemOnDevice& item : prompts) {
        if (!item.scored) continue;
        item.sums = scratch;
        scratch += args.kv.heads * item.tokens;
      }
    }
    for_parts(context, a, prompts,
              [&](int64_t count) { launch_prompts(context, a, count, tokens_max, chosen); });
  }
  for_parts(context, a, steps, [&](int64_t count) {
    launch_decode(context, a, count, rows_max, scored, scratch_bytes);
  });
}

}  // namespace spillway::cuda
