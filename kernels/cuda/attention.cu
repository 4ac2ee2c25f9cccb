// Attention on the device: a call's items are passed as kernel parameters if few, else uploaded,
// and so are their block tables; prompts and decode steps have launches of their own.
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
  a.window = args.window;
  a.scale = args.scale != 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(kv.head_size));
  return a;
}

// An item on its way to the device.
struct QueuedItem {
  ItemOnDevice one;    // Its block table is still the caller's.
  int64_t blocks = 0;  // Entries of the block table
  // Of a prompt behind a beginning: the table of the blocks that it reads, and after these the
  // `kept_blocks` of its cache; in place of the caller's tables.
  std::vector<std::byte*> own;
  int64_t kept_blocks = 0;

  std::byte* const* table() const { return own.empty() ? one.kv.table : own.data(); }
  int64_t bytes() const {
    return static_cast<int64_t>(sizeof(one)) + blocks * static_cast<int64_t>(sizeof(std::byte*));
  }
};

// How many of the items go at once, from the first on. One whose block table is large goes alone.
size_t part_of(std::span<const QueuedItem> items) {
  constexpr int64_t kBytes = CudaContext::kUploadCount<std::byte>;
  int64_t bytes = 0;
  size_t count = 0;
  while (count < items.size() && (count == 0 || bytes + items[count].bytes() <= kBytes)) {
    bytes += items[count++].bytes();
  }
  return count;
}

// Calls launch() for as many of the items at once as fit.
template <class Launch>
void for_parts(CudaContext& context, AttentionOnDevice& a, std::span<const QueuedItem> items,
               const Launch& launch) {
  std::vector<ItemOnDevice> part;
  std::vector<std::byte*> tables;
  while (!items.empty()) {
    const auto queued = items.first(part_of(items));
    items = items.subspan(queued.size());
    tables.clear();
    for (const QueuedItem& item : queued) {
      tables.insert(tables.end(), item.table(), item.table() + item.blocks);
    }
    std::byte* const* table = nullptr;
    if (!tables.empty()) table = context.upload(std::span<std::byte* const>(tables));
    part.clear();
    for (const QueuedItem& item : queued) {
      part.push_back(item.one);
      if (item.blocks == 0) continue;
      part.back().kv.table = table;
      table += item.blocks;
      if (item.kept_blocks > 0) part.back().set_kept_table(table - item.kept_blocks);
    }
    const bool few = part.size() <= static_cast<size_t>(kFewItems);
    if (few) std::copy(part.begin(), part.end(), a.few);
    a.items = few ? nullptr : context.upload(std::span<const ItemOnDevice>(part));
    if (!context.status().ok()) return;
    launch(static_cast<int64_t>(part.size()));
  }
}

// `first_head`: KvLayout::first_head, for budgets that draw numbers.
QueuedItem on_device(const AttentionItem& item, int64_t first_head = 0) {
  const KvBudget& budget = item.budget;
  const auto narrow = [](int64_t number) { return static_cast<int32_t>(number); };
  ItemOnDevice one{};
  one.first_row = item.first_row;
  one.tokens = narrow(item.tokens);
  one.position = narrow(item.position);
  one.prompt = item.is_step() ? 0 : narrow(item.prompt_tokens());
  one.recent = narrow(budget.recent);
  one.kept = narrow(budget.kept);
  one.first = narrow(budget.first);
  one.rows = narrow(item.is_step() ? budget.attended(item.position)
                    : item.whole() ? 0
                                   : budget.chunk_ring);
  one.slot = item.behind_beginning() ? ItemOnDevice::kBehind : narrow(budget.slot(item.position));
  one.scored = budget.scored();
  one.random = budget.random();
  one.snaps = budget.scored() && budget.snaps();
  one.highest = budget.score == KvScore::kSnapMax;
  one.scored_from = item.is_step() ? 0 : narrow(budget.scored_from(item.prompt_tokens()));
  one.draw_key = one.random ? KvDraw::key_of(budget.seed, item.layer, first_head) : 0;
  one.kv = item.kv;
  one.state = item.state;
  QueuedItem queued;
  queued.one = one;
  queued.blocks = item.kv.table == nullptr ? 0 : kv_blocks(item.capacity());
  return queued;
}

// Makes the block tables of a prompt behind a beginning, whose rows are read where they lie, while
// those of the prompt itself are put into `rows`, memory of their size.
void put_behind(const AttentionArgs& args, const AttentionItem& item, std::byte* rows,
                QueuedItem& queued) {
  const size_t bytes = args.kv.block_bytes();
  const auto append = [&](const KvBlocks& from, int64_t count) {
    for (int64_t block = 0; block < count; ++block) {
      queued.own.push_back(from.block(block, bytes));
    }
  };
  queued.kept_blocks = kv_blocks(item.capacity());
  append(item.beginning, kv_blocks(item.position));
  append(rows, kv_blocks(item.tokens));
  append(item.kv, queued.kept_blocks);
  queued.blocks = static_cast<int64_t>(queued.own.size());
}

// Scratch of a prompt beside the statistics of its rows: sums of a whole prompt's weights, which a
// chunk has in its state; rows that are not in the cache yet, or that wait for their slots in it.
// The rows of a beginning are read where they lie.
struct PromptScratch {
  size_t sums = 0, rows = 0;
  size_t bytes() const { return sums + rows; }
};
PromptScratch scratch_of(const AttentionArgs& args, const AttentionItem& item) {
  const KvBudget& budget = item.budget;
  PromptScratch found;
  if (budget.full()) return found;
  if (item.whole()) {
    found.rows = args.kv.sequence_bytes(item.tokens);
    const KvStateLayout layout{args.kv.heads, budget};
    found.sums = layout.chunked_bytes(item.prompt_tokens()) - layout.bytes();
  } else if (item.ends_prompt()) {
    found.rows = args.kv.sequence_bytes(budget.span(item.position + item.tokens));
  }
  found.rows = (found.rows + 255) / 256 * 256;
  return found;
}

// Gives a prompt behind a beginning the sums that the beginning has.
void begin_sums(CudaContext& context, const AttentionArgs& args, const AttentionItem& item,
                float* sums) {
  const KvStateLayout layout{args.kv.heads, item.budget};
  launch_first_sums(context,
                    {item.beginning_scores, item.beginning_scores_stride, sums,
                     layout.prompt_scores(item.prompt), item.position},
                    args.kv.heads);
}

// Prompts whose scratch is there at once.
void attend_prompts(CudaContext& context, const AttentionArgs& args,
                    std::span<const AttentionItem* const> prompts) {
  AttentionOnDevice a = view_of(args);
  size_t bytes = 0;
  bool scored = false;
  for (const AttentionItem* item : prompts) {
    bytes += scratch_of(args, *item).bytes();
    scored = scored || item->budget.scored();
  }
  const size_t statistics =
      scored ? static_cast<size_t>(args.qkv.rows * args.heads * 2) * sizeof(float) : 0;
  bytes += (statistics + 255) / 256 * 256;
  std::byte* scratch = bytes > 0 ? context.scratch(bytes) : nullptr;
  if (bytes > 0 && scratch == nullptr) return;  // The context has the reason.
  if (scored) a.statistics = reinterpret_cast<float*>(scratch);
  scratch += (statistics + 255) / 256 * 256;

  std::vector<QueuedItem> items, ending;
  int64_t tokens_max = 0, keys_max = 0;
  bool chosen = false;  // Some prompt keeps positions beside its last ones.
  bool snaps = false;   // Some prompt's scores are snap's.
  bool moved = false;   // Some prompt's rows move in the cache.
  for (const AttentionItem* item : prompts) {
    QueuedItem queued = on_device(*item, args.kv.first_head);
    ItemOnDevice& one = queued.one;
    const PromptScratch own = scratch_of(args, *item);
    if (item->behind_beginning()) {
      put_behind(args, *item, scratch, queued);
    } else if (own.rows > 0) {
      one.scratch = scratch;
    }
    scratch += own.rows;
    if (one.scored) {
      const KvStateLayout layout{args.kv.heads, item->budget};
      one.sums = own.sums > 0 ? reinterpret_cast<float*>(scratch)
                              : layout.prompt_scores_at(item->state, 0, item->prompt_tokens());
    }
    scratch += own.sums;
    if (one.scored && item->behind_beginning()) begin_sums(context, args, *item, one.sums);
    items.push_back(queued);
    tokens_max = std::max(tokens_max, item->tokens);
    keys_max = std::max(keys_max, item->position + item->tokens);
    if (one.recent == 0 || !item->ends_prompt()) continue;
    ending.push_back(queued);
    chosen = chosen || one.kept > 0;
    snaps = snaps || one.snaps;
    moved = moved || !item->whole();
  }
  for_parts(context, a, items,
            [&](int64_t count) { launch_prompts(context, a, count, tokens_max, keys_max); });
  for_parts(context, a, ending, [&](int64_t count) {
    if (snaps) launch_snap(context, a, count);
    launch_keep(context, a, count, keys_max, chosen, moved);
  });
}

// A step with a draft: its rows are stored together, since a split of one token's rows may be read
// before another block has stored what the token before it adds, and each token then attends alone.
void add_draft(const AttentionItem& item, std::vector<QueuedItem>* stored,
               std::vector<QueuedItem>* steps) {
  stored->push_back(on_device(item));
  stored->back().one.rows = 0;  // Position p in slot p
  for (int64_t token = 0; token < item.tokens; ++token) {
    steps->push_back(on_device(item.step_token(token)));
    steps->back().one.slot = ItemOnDevice::kStored;
  }
}

}  // namespace

void run(CudaContext& context, const AttentionArgs& args) {
  attention_within(context, args, kDecodeScratchBytes);
}

void attention_within(CudaContext& context, const AttentionArgs& args, int64_t scratch_bytes) {
  if (!context.ready()) return;
  std::vector<const AttentionItem*> prompts;
  std::vector<QueuedItem> steps, drafts;
  int64_t rows_max = 0, draft_max = 0;
  size_t bytes = 0;
  bool scored = false;  // Some decode step's budget is by score.
  for (const AttentionItem& item : args.items) {
    if (item.is_step()) {
      if (item.tokens == 1) {
        steps.push_back(on_device(item, args.kv.first_head));
      } else {
        add_draft(item, &drafts, &steps);
        draft_max = std::max(draft_max, item.tokens);
      }
      rows_max = std::max<int64_t>(rows_max, steps.back().one.rows);
      scored = scored || steps.back().one.scored;
      continue;
    }
    bytes += scratch_of(args, item).bytes();
    if (bytes > static_cast<size_t>(kPromptScratchBytes) && !prompts.empty()) {
      attend_prompts(context, args, prompts);
      prompts.clear();
      bytes = scratch_of(args, item).bytes();
    }
    prompts.push_back(&item);
  }
  if (!prompts.empty()) attend_prompts(context, args, prompts);
  AttentionOnDevice a = view_of(args);
  for_parts(context, a, drafts, [&](int64_t count) { launch_store(context, a, count, draft_max); });
  for_parts(context, a, steps, [&](int64_t count) {
    launch_decode(context, a, count, rows_max, scored, scratch_bytes);
  });
}

}  // namespace spillway::cuda
