#include "offload/kv_sequence.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/kv_state.h"

namespace spillway {

int64_t KvSequence::positions() const {
  // Layers whose blocks may lie apart have as many as each other.
  for (const Place& place : places) {
    if (!kinds[place.window ? 1 : 0].in_blocks()) continue;
    int64_t blocks = shared_blocks;
    for (const KvRun& run : place.runs) blocks += run.blocks;
    return std::min(rows, blocks * kKvBlockRows);
  }
  return rows;
}

KvPages KvPages::split_off(int64_t count, uint64_t block_bytes) {
  SPILLWAY_CHECK(0 < count && count < blocks);
  SPILLWAY_CHECK(states.empty());
  KvPages rest;
  rest.blocks = blocks - count;
  rest.runs.reserve(runs.size());
  for (const std::vector<KvRun>& own : runs) {  // Nothing changes before all memory is there.
    int64_t left = count;
    std::vector<KvRun>& behind = rest.runs.emplace_back();
    for (const KvRun& run : own) {
      const int64_t stay = std::min(left, run.blocks);
      left -= stay;
      if (stay == run.blocks) continue;
      const uint64_t bytes = static_cast<uint64_t>(stay) * block_bytes;
      behind.push_back({run.offset + bytes, run.bytes - bytes, run.blocks - stay});
    }
  }
  for (std::vector<KvRun>& own : runs) {
    size_t kept = 0;
    for (int64_t left = count; left > 0; ++kept) {
      KvRun& run = own[kept];
      run.blocks = std::min(left, run.blocks);
      run.bytes = static_cast<uint64_t>(run.blocks) * block_bytes;
      left -= run.blocks;
    }
    own.resize(kept);
  }
  blocks = count;
  return rest;
}

uint64_t KvSequence::used_bytes(const KvLayout& layout, int64_t layer, int64_t positions,
                                bool as_on_disk) const {
  const KvLayer& its = kind(layer);
  const int64_t used = its.budget.chunked_span(chunked_prompt, positions);
  return (as_on_disk ? its.disk_state_bytes() : its.state_bytes) + own_bytes(layout, used);
}

uint64_t KvSequence::needed_bytes(const KvLayout& layout, int64_t layer, int64_t position,
                                  int64_t tokens, bool as_on_disk) const {
  const int64_t end = position + tokens;
  if (end != chunked_prompt) return used_bytes(layout, layer, end, as_on_disk);
  const KvLayer& its = kind(layer);
  const int64_t used = std::max(its.budget.in_chunks(end), its.budget.span(end));
  return (as_on_disk ? its.disk_state_bytes() : its.state_bytes) + own_bytes(layout, used);
}

template <class Each>
void KvSequence::for_parts(const KvLayout& layout, int64_t layer, int64_t position, int64_t tokens,
                           const Each& each) const {
  SPILLWAY_CHECK(position + tokens <= rows);
  const bool disk = on_disk(layer);
  const uint64_t filled = begins_at(position) ? 0 : used_bytes(layout, layer, position, disk);
  const uint64_t needed = needed_bytes(layout, layer, position, tokens, disk);
  uint64_t before = 0;  // Bytes of the runs before
  for (const KvRun& run : place(layer).runs) {
    if (needed <= before) return;
    const bool piece = run.blocks == 0;  // With its state
    const uint64_t bytes =
        piece ? run.bytes : static_cast<uint64_t>(run.blocks) * layout.block_bytes();
    const auto in_run = [&](uint64_t end) { return std::min(bytes, end - std::min(end, before)); };
    const auto blocks = static_cast<int64_t>(in_run(needed) / layout.block_bytes());
    each(RunPart{in_run(filled), in_run(needed), piece ? 0 : blocks});
    before += bytes;
  }
}

void KvSequence::find_parts(const KvLayout& layout, int64_t layer, int64_t position, int64_t tokens,
                            std::vector<RunPart>* parts) const {
  parts->clear();
  for_parts(layout, layer, position, tokens, [&](const RunPart& part) { parts->push_back(part); });
}

void KvSequence::add_uses(const KvLayout& layout, int64_t layer, int64_t position, int64_t tokens,
                          std::vector<SpillUse>* uses) {
  SPILLWAY_CHECK(on_disk(layer));
  auto object = place(layer).spilled.begin();
  for_parts(layout, layer, position, tokens, [&](const RunPart& part) {
    uses->push_back({&*object++, part.filled, round_up(part.needed, kIoAlignment)});
  });
}

namespace {

// Sorts ranges and merges those that touch.
void merge(std::vector<ByteRange>* ranges) {
  std::sort(ranges->begin(), ranges->end(),
            [](const ByteRange& a, const ByteRange& b) { return a.from < b.from; });
  size_t last = 0;
  for (size_t i = 1; i < ranges->size(); ++i) {
    const ByteRange& next = (*ranges)[i];
    if (next.from <= (*ranges)[last].to) {
      (*ranges)[last].to = std::max((*ranges)[last].to, next.to);
    } else {
      (*ranges)[++last] = next;
    }
  }
  ranges->resize(last + 1);
}

}  // namespace

void KvSequence::find_changes(const KvLayout& layout, int64_t layer, std::byte* state,
                              int64_t position, int64_t tokens,
                              std::vector<ByteRange>* changes) const {
  changes->clear();
  const KvBudget& budget = this->budget(layer);
  const uint64_t block_bytes = layout.block_bytes();
  const KvLayer& its = kind(layer);
  const uint64_t rows_at = on_disk(layer) ? its.disk_state_bytes() : its.state_bytes;
  const int64_t end = position + tokens;
  const bool in_prompt = end <= chunked_prompt;
  if (begins_at(position) || (in_prompt && end == chunked_prompt && !budget.full())) {
    const int64_t used = budget.chunked_span(chunked_prompt, end);
    const uint64_t behind = rows_at + own_bytes(layout, used);
    if (behind > 0) changes->push_back({0, behind});
    return;
  }
  const auto add_slots = [&](int64_t from, int64_t to) {
    const int64_t first = std::max<int64_t>(0, from / kKvBlockRows - shared_blocks);
    const uint64_t begin = rows_at + static_cast<uint64_t>(first) * block_bytes;
    const uint64_t behind = rows_at + own_bytes(layout, to);
    if (begin < behind) changes->push_back({begin, behind});  // Else they are of shared blocks.
  };
  if (rows_at > 0) changes->push_back({0, rows_at});
  if (in_prompt) {  // A chunk: its own rows, and the scores of all
    const int64_t from = budget.chunked_slot(position), to = budget.chunked_slot(end - 1) + 1;
    if (from < to) return add_slots(from, to);
    add_slots(0, to);  // In a ring, around its end
    add_slots(from, budget.chunk_ring);
    return merge(changes);
  }
  if (budget.full()) return add_slots(position, end);  // Several slots, where it has a draft
  const auto add = [&](int64_t slot) { add_slots(slot, slot + 1); };
  add(budget.slot(position));
  if (!budget.has_state()) return;
  for (int64_t head = 0; head < layout.heads; ++head) {
    const int32_t moved = *KvStateLayout{layout.heads, budget}.head(state, head).moved;
    if (moved >= 0) add(moved);
  }
  merge(changes);  // Several heads may have changed one block.
}

}  // namespace spillway
