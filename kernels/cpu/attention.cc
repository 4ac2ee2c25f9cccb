// Attention on the CPU: prompts and decode steps, in tasks of one sequence and KV head or a share
// of it.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/base/checked_math.h"
#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/attention_int16.h"
#include "kernels/cpu/attention_parts.h"
#include "kernels/cpu/attention_tile.h"
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
    view.draw = KvDraw(KvDraw::key_of(item.budget.seed, item.layer, kv.first_head), kv_head);
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
// faster. Matrix units are faster even where factors have two parts, which leave out far less than
// the rounding of a cache that is not in float32; without them 16-bit integers are, which leave out
// as little of queries and softmax weights, and nothing of a cache in 8 bits. The choice must not
// depend on the KV rule: a prompt's beginning may have been computed for a request of another one.
void choose_products(const CpuContext& context, const AttentionArgs& args, PromptView* view) {
  const Format format = args.kv.format;
  const bool of_bf16 = format == Format::kBF16;
  const bool one_part = of_bf16 && args.out.dtype == DType::kBF16;
  if (context.tiles() && attends_by_tiles() && format != Format::kF32) {
    view->products = PromptProducts::kTiles;
    view->parts = {one_part ? 1 : 2, of_bf16 ? 1 : 2};
  } else if (context.bf16_dot() && one_part) {
    view->products = PromptProducts::kBf16Pairs;
  } else if (format == Format::kQ8 && int16_head_size(args.kv.head_size) && attends_by_int16()) {
    view->products = PromptProducts::kInt16;
  }
}

PromptView prompt_view(const CpuContext& context, const AttentionArgs& args,
                       const AttentionItem& item, int64_t kv_head) {
  const int64_t group = group_of(args);
  PromptView view{head_view(args, item, kv_head * group),
                  group,
                  item.position,
                  args.window,
                  item.behind_beginning() ? item.beginning : item.kv,
                  item.position + (stays_in_cache(item) ? item.tokens : 0),
                  item.budget.scored_from(item.prompt_tokens()),
                  item.budget.score == KvScore::kSnapMax,
                  item.budget.chunk_ring,
                  PromptProducts::kFloat,
                  FactorParts()};
  choose_products(context, args, &view);
  return view;
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

// With so many tasks of decode steps, threads have work until nearly the end.
constexpr int64_t kStepTasksPerThread = 8;

// Whether a decode step's rows are cut into parts. A rule that drops rows keeps few, and scores
// need the softmax of all.
bool in_parts(const AttentionItem& item) {
  return item.is_step() && item.budget.full() &&
         item.budget.attended(item.position + item.tokens - 1) > kPartRows;
}

// The decode steps whose parts are tasks of their own, and memory for these. The other ones' parts
// are computed one after another.
class SpreadParts {
 public:
  SpreadParts(CpuContext& context, const AttentionArgs& args) : args_(args) {
    const auto steps = std::count_if(args.items.begin(), args.items.end(),
                                     [](const auto& i) { return i.is_step(); });
    if (steps * args.kv.heads >= kStepTasksPerThread * context.threads()) return;
    const size_t each = static_cast<size_t>(args.heads) *
                        (sizeof(StepPart) + static_cast<size_t>(args.kv.head_size) * sizeof(float));
    int64_t count = 0;
    for (const AttentionItem& item : args.items) {
      const int64_t more = in_parts(item) ? count_of(item) : 0;
      const bool fits = static_cast<size_t>(count + more) * each <= kSpreadPartsBytesMax;
      before_.push_back(more > 0 && fits ? count : -1);
      if (fits) count += more;
    }
    if (count == 0) return;
    std::byte* const memory = context.shared_scratch(static_cast<size_t>(count) * each);
    sums_ = reinterpret_cast<float*>(memory);
    parts_ = reinterpret_cast<StepPart*>(sums_ + count * args.heads * args.kv.head_size);
  }

  bool has(const AttentionItem& item) const {
    return !before_.empty() && before_[number_of(item)] >= 0;
  }
  // Parts of all tokens of an item.
  static int64_t count_of(const AttentionItem& item) {
    int64_t count = 0;
    for (int64_t token = 0; token < item.tokens; ++token) count += of_token(item, token);
    return count;
  }
  static int64_t of_token(const AttentionItem& item, int64_t token) {
    return parts_of_rows(item.budget.attended(item.position + token));
  }
  // [heads] and [heads][head size] of an item's part, those of its tokens one after another.
  StepPart* parts(const AttentionItem& item, int64_t index) const {
    return parts_ + (before_[number_of(item)] + index) * args_.heads;
  }
  float* sums(const AttentionItem& item, int64_t index) const {
    return sums_ + (before_[number_of(item)] + index) * args_.heads * args_.kv.head_size;
  }

 private:
  size_t number_of(const AttentionItem& item) const {
    return static_cast<size_t>(&item - args_.items.data());
  }

  const AttentionArgs& args_;
  std::vector<int64_t> before_;  // [items]: parts before theirs; -1: not here. None: no item is.
  StepPart* parts_ = nullptr;
  float* sums_ = nullptr;
};

// Part `part` of what some heads attend to: their sums go to `sums`.
HeadView part_of(HeadView view, int64_t part, float* sums) {
  const int64_t first = part * kPartRows;
  view.kv = view.kv.from(first / kKvBlockRows, view.block_bytes);
  view.rows = std::min(kPartRows, view.rows - first);
  view.out = reinterpret_cast<std::byte*>(sums);
  view.out_dtype = DType::kF32;
  return view;
}

// Calls use(first, count) for the `all` query heads of some KV heads. Where more than a step takes
// share one KV head (step_kv_heads), they go in even shares, each of which reads its rows.
template <class Use>
void for_step_heads(const HeadView& view, int64_t all, int64_t kv_heads, const Use& use) {
  const int64_t most = step_heads_max(view);
  const int64_t shares = kv_heads > 1 ? 1 : (all + most - 1) / most;
  const int64_t each = (all + shares - 1) / shares;
  for (int64_t first = 0; first < all; first += each) use(first, std::min(each, all - first));
}

// One token of some KV heads and the query heads that share them, whose rows are in the cache.
// `scores`: null, or those of the KV heads.
void attend_token(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
                  int64_t first_kv_head, int64_t kv_heads, float* const* scores) {
  const int64_t all = kv_heads * group_of(args), head = first_kv_head * group_of(args);
  const bool more = first_kv_head + 2 * kv_heads <= args.kv.heads;
  for_step_heads(head_view(args, item, head), all, kv_heads, [&](int64_t first, int64_t count) {
    const HeadView view = head_view(args, item, head + first);
    auto* scratch =
        reinterpret_cast<float*>(context.thread_scratch(step_scratch_bytes(view, count)));
    attend_step({view, static_cast<size_t>(count), kv_heads, more, nullptr, scores}, scratch);
  });
}

// Part `part` of a token's rows, for `count` query heads from `head` on, which share some KV heads.
// parts: [count]; sums: [count][head size].
void attend_part(const AttentionArgs& args, const AttentionItem& item, int64_t head, int64_t count,
                 int64_t kv_heads, int64_t part, StepPart* parts, float* sums, float* scratch) {
  const HeadView view = part_of(head_view(args, item, head), part, sums);
  attend_step({view, static_cast<size_t>(count), kv_heads, false, parts}, scratch);
}

// All parts of a token's rows, one after another.
void attend_parts(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
                  int64_t first_kv_head, int64_t kv_heads) {
  const int64_t all = kv_heads * group_of(args), size = args.kv.head_size;
  const int64_t parts = parts_of_rows(item.budget.attended(item.position));
  const HeadView one = part_of(head_view(args, item, 0), 0, nullptr);
  for_step_heads(one, all, kv_heads, [&](int64_t first, int64_t count) {
    const int64_t head = first_kv_head * group_of(args) + first;
    const size_t step_bytes = step_scratch_bytes(one, count);
    auto* const sums = reinterpret_cast<float*>(
        context.thread_scratch(step_bytes + part_sums_bytes(size, count)) + step_bytes);
    float* const scratch = sums - step_bytes / sizeof(float);
    StepPart joined[kStepHeadsMax], found[kStepHeadsMax];
    attend_part(args, item, head, count, kv_heads, 0, joined, sums, scratch);
    float* const further = sums + count * size;
    for (int64_t part = 1; part < parts; ++part) {
      attend_part(args, item, head, count, kv_heads, part, found, further, scratch);
      for (int64_t i = 0; i < count; ++i) {
        join_part(found[i], further + i * size, static_cast<size_t>(size), joined + i,
                  sums + i * size);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      store_joined(head_view(args, item, head + i), joined[i], sums + i * size);
    }
  });
}

// Stores the rows of a decode step's token.
void store_token(const AttentionArgs& args, const AttentionItem& item, int64_t first_kv_head,
                 int64_t kv_heads) {
  cpu::store_token(head_view(args, item, first_kv_head * group_of(args)), kv_heads,
                   item.budget.slot(item.position));
}

// A token under a rule that does not keep all rows.
void run_budgeted_token(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
                        int64_t first_kv_head, int64_t kv_heads) {
  KvHeadState states[kStepHeadsMax];
  float* scores[kStepHeadsMax];
  for (int64_t i = 0; i < kv_heads; ++i) {
    states[i] = KvStateLayout{args.kv.heads, item.budget}.head(item.state, first_kv_head + i);
    scores[i] = states[i].scores;
    if (scores[i] != nullptr) scores[i][item.budget.slot(item.position)] = 0;
  }
  attend_token(context, args, item, first_kv_head, kv_heads, scores);
  for (int64_t i = 0; i < kv_heads; ++i) {
    const HeadView first = head_view(args, item, (first_kv_head + i) * group_of(args));
    keep_step(first, item.budget, item.position, states[i]);
  }
}

void run_token(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
               int64_t first_kv_head, int64_t kv_heads) {
  store_token(args, item, first_kv_head, kv_heads);
  if (!item.budget.full()) {
    return run_budgeted_token(context, args, item, first_kv_head, kv_heads);
  }
  if (in_parts(item)) return attend_parts(context, args, item, first_kv_head, kv_heads);
  attend_token(context, args, item, first_kv_head, kv_heads, nullptr);
}

// A decode step of some KV heads. A draft's tokens go one after another, in one task, so that what
// the first of them reads of the cache is near for the others.
void run_step(CpuContext& context, const AttentionArgs& args, const AttentionItem& item,
              int64_t first_kv_head, int64_t kv_heads) {
  for (int64_t token = 0; token < item.tokens; ++token) {
    run_token(context, args, item.step_token(token), first_kv_head, kv_heads);
  }
}

// Part `index` of those of all tokens of a decode step whose parts are tasks.
void run_part(CpuContext& context, const AttentionArgs& args, const SpreadParts& spread,
              const AttentionItem& item, int64_t index, int64_t first_kv_head, int64_t kv_heads) {
  int64_t token = 0, part = index;
  for (; part >= SpreadParts::of_token(item, token); ++token) {
    part -= SpreadParts::of_token(item, token);
  }
  const AttentionItem one = item.step_token(token);
  const int64_t all = kv_heads * group_of(args);
  const HeadView view = part_of(head_view(args, one, 0), part, nullptr);
  for_step_heads(view, all, kv_heads, [&](int64_t first, int64_t count) {
    const int64_t head = first_kv_head * group_of(args) + first;
    auto* const scratch =
        reinterpret_cast<float*>(context.thread_scratch(step_scratch_bytes(view, count)));
    attend_part(args, one, head, count, kv_heads, part, spread.parts(item, index) + head,
                spread.sums(item, index) + head * args.kv.head_size, scratch);
  });
}

// Joins them, for the query heads that share a KV head, in the place of the first part.
void join_parts(const AttentionArgs& args, const SpreadParts& spread, const AttentionItem& item,
                int64_t kv_head) {
  const int64_t group = group_of(args), size = args.kv.head_size;
  int64_t index = 0;
  for (int64_t token = 0; token < item.tokens; ++token) {
    const int64_t end = index + SpreadParts::of_token(item, token);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      StepPart* const all = spread.parts(item, index) + head;
      float* const sums = spread.sums(item, index) + head * size;
      for (int64_t part = index + 1; part < end; ++part) {
        join_part(spread.parts(item, part)[head], spread.sums(item, part) + head * size,
                  static_cast<size_t>(size), all, sums);
      }
      store_joined(head_view(args, item.step_token(token), head), *all, sums);
    }
    index = end;
  }
}

// KV heads per task of a decode step: more are read in longer runs, fewer make tasks for more
// threads.
int64_t step_kv_heads(const AttentionArgs& args, int threads) {
  int64_t steps = 0, most = static_cast<int64_t>(kStepHeadsMax);
  for (const AttentionItem& item : args.items) {
    if (!item.is_step()) continue;
    ++steps;
    const AttentionItem last = item.step_token(item.tokens - 1);  // It attends to the most rows.
    HeadView view = head_view(args, last, 0);
    if (in_parts(item)) view.rows = kPartRows;
    most = std::min(most, step_heads_max(view));
  }
  const int64_t group = group_of(args);
  int64_t found = 1;
  for (int64_t heads = 2; heads * group <= most; heads *= 2) {
    const bool enough = steps * args.kv.heads >= heads * kStepTasksPerThread * threads;
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
  const SpreadParts spread(context, args);
  // A prompt's rows are in the cache before any task attends to them, and those of a step's parts.
  Tasks(args.items, [&](const AttentionItem& item) {
    return heads_if(item.is_step() ? spread.has(item) : stays_in_cache(item));
  }).run(context, [&](const AttentionItem& item, int64_t kv_head) {
    if (!item.is_step()) return store_prompt(args, item, kv_head);
    for (int64_t token = 0; token < item.tokens; ++token) {
      store_token(args, item.step_token(token), kv_head, 1);
    }
  });
  const int64_t together = step_kv_heads(args, threads);
  Tasks(args.items, [&](const AttentionItem& item) {
    if (spread.has(item)) return kv_heads / together * spread.count_of(item);
    if (item.is_step()) return kv_heads / together;
    const int64_t each = share_rows(args, item, threads);
    return kv_heads * ((item.tokens * group + each - 1) / each);
  }).run(context, [&](const AttentionItem& item, int64_t task) {
    if (spread.has(item)) {
      const int64_t count = spread.count_of(item), first = task / count * together;
      return run_part(context, args, spread, item, task % count, first, together);
    }
    if (item.is_step()) return run_step(context, args, item, task * together, together);
    const int64_t rows = item.tokens * group, each = share_rows(args, item, threads);
    const int64_t first = task / kv_heads * each;
    run_prompt(context, args, item, task % kv_heads, first, std::min(first + each, rows));
  });
  Tasks(args.items, [&](const AttentionItem& item) {
    return heads_if(spread.has(item));
  }).run(context, [&](const AttentionItem& item, int64_t kv_head) {
    join_parts(args, spread, item, kv_head);
  });
  // All have attended to the rows that go now. Those with scores have moved theirs already.
  Tasks(args.items, [&](const AttentionItem& item) {
    return heads_if(item.ends_prompt() && !item.budget.full() && !item.budget.scored());
  }).run(context, [&](const AttentionItem& item, int64_t kv_head) {
    keep(context, args, item, prompt_view(context, args, item, kv_head), kv_head);
  });
}

}  // namespace spillway::cpu
