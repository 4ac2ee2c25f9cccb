// Attention on the CPU: prompts and decode steps, one task a sequence and KV head.
#include <algorithm>
#include <cmath>

#include "kernels/base/checked_math.h"
#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/cpu_ops.h"

namespace spillway::cpu {

namespace {

HeadView head_view(const AttentionArgs& args, const AttentionItem& item, int64_t head) {
  const KvLayout& kv = args.kv;
  const int64_t kv_head = head / (args.heads / kv.heads);
  const auto* qkv = reinterpret_cast<const float*>(args.qkv.row(item.first_row));
  const int64_t keys = args.heads * kv.head_size;
  HeadView view;
  view.q = qkv + head * kv.head_size;
  view.k = qkv + keys + kv_head * kv.head_size;
  view.v = view.k + kv.heads * kv.head_size;
  view.stride = args.qkv.stride;
  view.tokens = item.tokens;
  view.rows = item.budget.attended(item.position);
  view.head_size = kv.head_size;
  view.scale = 1.0f / std::sqrt(static_cast<float>(kv.head_size));
  view.kv_dtype = kv.dtype;
  view.kv_row_bytes = kv.row_bytes();
  view.keys = item.kv + kv.run_offset(0, kv_head);
  view.values = view.keys + kv.value_offset();
  view.block_bytes = kv.block_bytes();
  view.out = args.out.row(item.first_row) +
             static_cast<size_t>(head * kv.head_size) * dtype_bytes(args.out.dtype);
  view.out_dtype = args.out.dtype;
  view.out_stride = args.out.stride;
  return view;
}

// A prompt of one KV head and the query heads that share it.
void run_prompt(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
                int64_t kv_head, int64_t group) {
  const KvBudget& budget = item.budget;
  HeadView first = head_view(args, item, kv_head * group);
  const uint64_t sums = budget.scored() ? round_up(static_cast<uint64_t>(item.tokens), 64) : 0;
  auto* memory = reinterpret_cast<float*>(
      context.thread_scratch(sums * sizeof(float) + prompt_scratch_bytes(first, budget.scored())));
  float* scratch = memory + sums;
  if (budget.scored()) {
    first.scores = memory;
    std::fill_n(first.scores, sums, 0.0f);
  }
  if (budget.full()) store_rows(first, 0, item.tokens, 0);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    HeadView view = head_view(args, item, head);
    view.scores = first.scores;
    attend_prompt(view, scratch);
  }
  if (budget.full()) return;
  const KvStateLayout layout{args.kv.heads, budget};
  keep_prompt(first, budget, layout.head(item.state, kv_head), scratch);
}

// The same for a decode step.
void run_step(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
              int64_t kv_head, int64_t group) {
  const HeadView first = head_view(args, item, kv_head * group);
  const int64_t slot = item.budget.slot(item.position);
  store_rows(first, 0, 1, slot);
  KvHeadState state;
  if (!item.budget.full()) {
    state = KvStateLayout{args.kv.heads, item.budget}.head(item.state, kv_head);
    if (state.scores != nullptr) state.scores[slot] = 0;
  }
  auto* scratch = reinterpret_cast<float*>(context.thread_scratch(step_scratch_bytes(first)));
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    HeadView view = head_view(args, item, head);
    view.scores = state.scores;
    // A group's heads read the same rows, which are near by then.
    const bool last = head + 1 == (kv_head + 1) * group && kv_head + 1 < args.kv.heads;
    if (last) view.next_keys = view.keys + args.kv.run_bytes();
    attend_one(view, scratch);
  }
  if (!item.budget.full()) keep_step(first, item.budget, item.position, state);
}

}  // namespace

void attention(CpuContext& context, const AttentionArgs& args) {
  const auto items = static_cast<int64_t>(args.items.size());
  const int64_t group = args.heads / args.kv.heads;
  // A task is a sequence and a KV head: its query heads share the stored rows. Long prompts first
  // would balance better, but 32 heads a sequence already make many small tasks.
  context.parallel_for(items * args.kv.heads, [&](int64_t task) {
    const AttentionItem& item = args.items[static_cast<size_t>(task / args.kv.heads)];
    const int64_t kv_head = task % args.kv.heads;
    if (item.position == 0) {
      run_prompt(context, args, item, kv_head, group);
    } else {
      run_step(context, args, item, kv_head, group);
    }
  });
}

}  // namespace spillway::cpu
