// Attention on the CPU: prompts and decode steps, one task per sequence and KV head.
#include <algorithm>
#include <cmath>
#include <vector>

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
  view.kv_format = kv.format;
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

// A decode step of some KV heads and the query heads that share them.
void run_step(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
              int64_t first_kv_head, int64_t kv_heads, int64_t group) {
  const int64_t slot = item.budget.slot(item.position);
  KvHeadState states[kStepHeadsMax];
  for (int64_t i = 0; i < kv_heads; ++i) {
    store_rows(head_view(args, item, (first_kv_head + i) * group), 0, 1, slot);
    if (item.budget.full()) continue;
    states[i] = KvStateLayout{args.kv.heads, item.budget}.head(item.state, first_kv_head + i);
    if (states[i].scores != nullptr) states[i].scores[slot] = 0;
  }
  const bool more = first_kv_head + 2 * kv_heads <= args.kv.heads;
  // More query heads than a step takes share one KV head (step_kv_heads), whose rows are then
  // cached.
  constexpr auto kMost = static_cast<int64_t>(kStepHeadsMax);
  for (int64_t first = 0; first < kv_heads * group; first += kMost) {
    const int64_t count = std::min(kMost, kv_heads * group - first);
    HeadView heads[kStepHeadsMax];
    for (int64_t i = 0; i < count; ++i) {
      heads[i] = head_view(args, item, first_kv_head * group + first + i);
      heads[i].scores = states[(first + i) / group].scores;
    }
    auto* scratch =
        reinterpret_cast<float*>(context.thread_scratch(step_scratch_bytes(heads[0], count)));
    attend_step({heads, static_cast<size_t>(count), kv_heads, more}, scratch);
  }
  if (item.budget.full()) return;
  for (int64_t i = 0; i < kv_heads; ++i) {
    const HeadView first = head_view(args, item, (first_kv_head + i) * group);
    keep_step(first, item.budget, item.position, states[i]);
  }
}

// KV heads per task of a decode step: more are read in longer runs, fewer make tasks for more
// threads.
int64_t step_kv_heads(const AttentionArgs& args, int64_t steps, int threads) {
  constexpr int64_t kTasksPerThread = 8;
  const int64_t group = args.heads / args.kv.heads;
  int64_t found = 1;
  for (int64_t heads = 2; heads * group <= static_cast<int64_t>(kStepHeadsMax); heads *= 2) {
    const bool enough = steps * args.kv.heads >= heads * kTasksPerThread * threads;
    if (args.kv.heads % heads == 0 && enough) found = heads;
  }
  return found;
}

}  // namespace

void run(CpuContext& context, const AttentionArgs& args) {
  const int64_t group = args.heads / args.kv.heads;
  const int64_t kv_heads = args.kv.heads;
  // A task is a sequence and one KV head, whose query heads share the stored rows, or several KV
  // heads of a decode step. Long prompts first would balance better, but 32 heads a sequence
  // already make many small tasks.
  const auto is_step = [](const AttentionItem& item) { return item.position > 0; };
  const auto steps = std::count_if(args.items.begin(), args.items.end(), is_step);
  const int64_t together = step_kv_heads(args, steps, context.threads());
  std::vector<int64_t> ends;  // Ends of each item's tasks
  ends.reserve(args.items.size());
  int64_t tasks = 0;
  for (const AttentionItem& item : args.items) {
    ends.push_back(tasks += is_step(item) ? kv_heads / together : kv_heads);
  }
  context.parallel_for(tasks, [&](int64_t task) {
    const auto end = std::upper_bound(ends.begin(), ends.end(), task);
    const AttentionItem& item = args.items[static_cast<size_t>(end - ends.begin())];
    const int64_t before = end == ends.begin() ? 0 : *(end - 1);
    if (is_step(item)) {
      run_step(context, args, item, (task - before) * together, together, group);
    } else {
      run_prompt(context, args, item, task - before, group);
    }
  });
}

}  // namespace spillway::cpu
