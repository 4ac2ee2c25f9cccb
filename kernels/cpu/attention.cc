// Attention on the CPU: prompts and decode steps, in tasks of one sequence and KV head or a share
// of it.
#include <algorithm>
#include <cmath>
#include <span>
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
  view.scale = args.scale != 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(kv.head_size));
  view.kv_format = kv.format;
  view.kv_row_bytes = kv.row_bytes();
  view.kv = item.kv;
  view.block_bytes = kv.block_bytes();
  view.keys_at = kv.run_offset(0, kv_head);
  view.values_at = view.keys_at + kv.value_offset();
  view.out = args.out.row(item.first_row) +
             static_cast<size_t>(head * kv.head_size) * dtype_bytes(args.out.dtype);
  view.out_dtype = args.out.dtype;
  view.out_stride = args.out.stride;
  if (item.budget.random()) {
    view.draw = KvDraw(KvDraw::key_of(item.budget.seed, item.layer), kv_head);
  }
  return view;
}

int64_t group_of(const AttentionArgs& args) {
  return args.heads / args.kv.heads;
}

// Whether the rows of a prompt lie in the cache while it is computed: not those of a whole prompt
// of which only a part stays, whose cache has no room for all.
bool stays_in_cache(const AttentionItem& item) {
  return item.budget.full() || !item.whole();
}

// Where the rest of the layer computes in bf16 and the cache is in bf16, so do prompts, if that is
// faster.
PromptView prompt_view(const CpuContext& context, const AttentionArgs& args,
                       const AttentionItem& item, int64_t kv_head) {
  const int64_t group = group_of(args);
  return {head_view(args, item, kv_head * group),
          group,
          item.position,
          args.window,
          item.behind_beginning() ? item.beginning : item.kv,
          item.position + (stays_in_cache(item) ? item.tokens : 0),
          item.budget.scored_from(item.prompt_tokens()),
          item.budget.score == KvScore::kSnapMax,
          item.budget.chunk_ring,
          context.bf16_dot() && args.out.dtype == DType::kBF16 && args.kv.format == Format::kBF16};
}

// Stores a prompt's new rows of one KV head, and sets the scores of their tiles of keys to 0.
void store_prompt(const AttentionArgs& args, const AttentionItem& item, int64_t kv_head) {
  if (!stays_in_cache(item)) return;
  const HeadView view = head_view(args, item, kv_head * group_of(args));
  for (int64_t token = 0; token < item.tokens;) {  // In runs of slots
    const int64_t slot = item.budget.chunked_slot(item.position + token);
    const int64_t ring = item.budget.chunk_ring;
    const int64_t count = std::min(item.tokens - token, ring == 0 ? item.tokens : ring - slot);
    store_rows(view, token, count, slot);
    token += count;
  }
  const KvStateLayout layout{args.kv.heads, item.budget};
  float* scores = layout.prompt_scores_at(item.state, kv_head, item.prompt_tokens());
  if (scores == nullptr) return;
  const auto tiles_end = [](int64_t positions) {
    return static_cast<int64_t>(round_up(static_cast<uint64_t>(positions), 64));
  };
  std::fill(scores + tiles_end(item.position), scores + tiles_end(item.position + item.tokens),
            0.0f);
}

// Keeps what a limited budget keeps of a prompt that ends here.
void keep(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
          const PromptView& view, int64_t kv_head) {
  const KvStateLayout layout{args.kv.heads, item.budget};
  std::byte* scratch =
      context.thread_scratch(keep_scratch_bytes(item.budget, view.head.kv_row_bytes));
  keep_prompt(view, item.budget, layout.head(item.state, kv_head), scratch);
}

// Query rows of a prompt of one KV head and the heads that share it. With scores these are all
// rows.
void run_prompt(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
                int64_t kv_head, int64_t first_row, int64_t end_row) {
  PromptView view = prompt_view(context, args, item, kv_head);
  // A chunk before the queries that count leaves the scores as they are.
  const bool scored = item.budget.scored() && view.keys() > view.scored_from;
  const size_t bytes = std::max(prompt_scratch_bytes(args.kv.head_size, view.keys(), scored),
                                scored ? keep_scratch_bytes(item.budget, args.kv.row_bytes()) : 0);
  // Scores of a whole prompt live in the scratch, behind the rest.
  const bool own_scores = scored && !view.in_place();
  const auto sums =
      own_scores ? static_cast<size_t>(round_up(static_cast<uint64_t>(view.keys()), 64)) : 0;
  std::byte* scratch = context.thread_scratch(bytes + sums * sizeof(float));
  if (own_scores) {
    view.head.scores = reinterpret_cast<float*>(scratch + bytes);
    std::fill_n(view.head.scores, sums, 0.0f);
    if (item.beginning_scores != nullptr) {  // Those of the queries before these
      std::copy_n(item.beginning_scores + kv_head * item.beginning_scores_stride, item.position,
                  view.head.scores);
    }
  } else if (scored) {
    const KvStateLayout layout{args.kv.heads, item.budget};
    view.head.scores = layout.prompt_scores_at(item.state, kv_head, item.prompt_tokens());
  }
  attend_prompt(view, first_row, end_row, reinterpret_cast<float*>(scratch));
  if (!scored || !item.ends_prompt()) return;
  keep_prompt(view, item.budget,
              KvStateLayout{args.kv.heads, item.budget}.head(item.state, kv_head), scratch);
}

// One token of some KV heads and the query heads that share them.
void run_token(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
               int64_t first_kv_head, int64_t kv_heads) {
  const int64_t group = group_of(args), slot = item.budget.slot(item.position);
  KvHeadState states[kStepHeadsMax];
  for (int64_t i = 0; i < kv_heads; ++i) {
    store_rows(head_view(args, item, (first_kv_head + i) * group), 0, 1, slot);
    if (item.budget.full()) continue;
    states[i] = KvStateLayout{args.kv.heads, item.budget}.head(item.state, first_kv_head + i);
    if (states[i].scores != nullptr) states[i].scores[slot] = 0;
  }
  const bool more = first_kv_head + 2 * kv_heads <= args.kv.heads;
  // Where more query heads than a step takes share one KV head (step_kv_heads), they go in even
  // parts, each of which reads its rows.
  const int64_t all = kv_heads * group;
  const int64_t most = step_heads_max(head_view(args, item, first_kv_head * group));
  const int64_t parts = kv_heads > 1 ? 1 : (all + most - 1) / most;
  const int64_t each = (all + parts - 1) / parts;
  for (int64_t first = 0; first < all; first += each) {
    const int64_t count = std::min(each, all - first);
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

// A decode step of some KV heads. A draft's tokens go one after another, in one task, so that what
// the first of them reads of the cache is near for the others.
void run_step(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
              int64_t first_kv_head, int64_t kv_heads) {
  for (int64_t token = 0; token < item.tokens; ++token) {
    run_token(context, args, item.step_token(token), first_kv_head, kv_heads);
  }
}

// KV heads per task of a decode step: more are read in longer runs, fewer make tasks for more
// threads.
int64_t step_kv_heads(const AttentionArgs& args, int threads) {
  constexpr int64_t kTasksPerThread = 8;
  int64_t steps = 0, most = static_cast<int64_t>(kStepHeadsMax);
  for (const AttentionItem& item : args.items) {
    if (!item.is_step()) continue;
    ++steps;
    const AttentionItem last = item.step_token(item.tokens - 1);  // It attends to the most rows.
    most = std::min(most, step_heads_max(head_view(args, last, 0)));
  }
  const int64_t group = group_of(args);
  int64_t found = 1;
  for (int64_t heads = 2; heads * group <= most; heads *= 2) {
    const bool enough = steps * args.kv.heads >= heads * kTasksPerThread * threads;
    if (args.kv.heads % heads == 0 && enough) found = heads;
  }
  return found;
}

// Query rows of a prompt per task. Long prompts of few KV heads are cut, since other threads would
// wait; not those with scores, which are added up row by row.
int64_t share_rows(const AttentionArgs& args, const AttentionItem& item, int threads) {
  constexpr int64_t kTasksPerThread = 4;
  const int64_t rows = item.tokens * group_of(args);
  if (item.budget.scored()) return rows;
  const auto tasks = static_cast<int64_t>(args.items.size()) * args.kv.heads;
  const int64_t parts = (kTasksPerThread * threads + tasks - 1) / tasks;
  const int64_t least = prompt_block_rows(args.kv.head_size, item.position + item.tokens);
  const int64_t blocks = (rows + least - 1) / least;
  return (blocks + parts - 1) / parts * least;
}

// Numbers the tasks of all items, one item's after another's.
class Tasks {
 public:
  template <class Count>
  Tasks(std::span<const AttentionItem> items, const Count& count) : items_(items) {
    ends_.reserve(items.size());
    int64_t end = 0;
    for (const AttentionItem& item : items) ends_.push_back(end += count(item));
  }
  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  // Calls body(item, number among its tasks) for all of them on the worker threads.
  template <class Body>
  void run(CpuContext& context, const Body& body) const {
    if (count() == 0) return;
    context.parallel_for(count(), [&](int64_t task) {
      const auto end = std::upper_bound(ends_.begin(), ends_.end(), task);
      const int64_t before = end == ends_.begin() ? 0 : *(end - 1);
      body(items_[static_cast<size_t>(end - ends_.begin())], task - before);
    });
  }

 private:
  std::span<const AttentionItem> items_;
  std::vector<int64_t> ends_;
};

}  // namespace

void run(CpuContext& context, const AttentionArgs& args) {
  const int64_t kv_heads = args.kv.heads, group = group_of(args);
  const int threads = context.threads();
  const auto heads_if = [&](bool wanted) { return wanted ? kv_heads : int64_t{0}; };
  // A prompt's rows are in the cache before any task attends to them.
  Tasks(args.items, [&](const AttentionItem& item) {
    return heads_if(!item.is_step() && stays_in_cache(item));
  }).run(context, [&](const AttentionItem& item, int64_t kv_head) {
    store_prompt(args, item, kv_head);
  });
  const int64_t together = step_kv_heads(args, threads);
  Tasks(args.items, [&](const AttentionItem& item) {
    if (item.is_step()) return kv_heads / together;
    const int64_t each = share_rows(args, item, threads);
    return kv_heads * ((item.tokens * group + each - 1) / each);
  }).run(context, [&](const AttentionItem& item, int64_t task) {
    if (item.is_step()) return run_step(context, args, item, task * together, together);
    const int64_t rows = item.tokens * group, each = share_rows(args, item, threads);
    const int64_t first = task / kv_heads * each;
    run_prompt(context, args, item, task % kv_heads, first, std::min(first + each, rows));
  });
  // All have attended to the rows that go now. Those with scores have moved theirs already.
  Tasks(args.items, [&](const AttentionItem& item) {
    return heads_if(item.ends_prompt() && !item.budget.full() && !item.budget.scored());
  }).run(context, [&](const AttentionItem& item, int64_t kv_head) {
    keep(context, args, item, prompt_view(context, args, item, kv_head), kv_head);
  });
}

}  // namespace spillway::cpu
