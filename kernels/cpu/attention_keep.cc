// Choice of the rows that a limited KV budget keeps (base/kv_budget.h). O(rows) per step, against
// the rows * head size of the attention before it.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/base/checked_math.h"
#include "kernels/cpu/attention_body.h"

namespace spillway::cpu {

namespace {

// Puts the row of a position into a slot: from the prompt's beginning, or a new one. REQUIRES: the
// prompt's rows are not in place.
void keep_row(const PromptView& prompt, int64_t position, int64_t slot) {
  const HeadView& view = prompt.head;
  if (position >= prompt.cached) return store_rows(view, position - prompt.position, 1, slot);
  std::memcpy(view.key_at(slot), prompt.cached_row(false, position), view.kv_row_bytes);
  std::memcpy(view.value_at(slot), prompt.cached_row(true, position), view.kv_row_bytes);
}

// Puts the last `budget.recent` positions into the ring, the new rows in one or two runs of slots.
void keep_recent(const PromptView& prompt, const KvBudget& budget) {
  const int64_t end = prompt.keys();
  int64_t position = std::max<int64_t>(0, end - budget.recent);
  for (; position < prompt.cached; ++position) keep_row(prompt, position, budget.slot(position));
  while (position < end) {
    const int64_t slot = budget.slot(position);
    const int64_t count = std::min(end - position, budget.ring() - slot);
    store_rows(prompt.head, position - prompt.position, count, slot);
    position += count;
  }
}

// An integer in the order of the scores. Weights that are not finite make NaN scores, which would
// have no order: they are the lowest. No score is below 0.
uint32_t rank_of(float score) {
  return std::isnan(score) ? 0 : std::bit_cast<uint32_t>(std::max(score, 0.0f)) + 1;
}

// The score of a position that stays: no sum of weights reaches it.
constexpr float kStays = std::numeric_limits<float>::infinity();

// A range of positions.
struct Positions {
  int64_t first, end;
};

// The `count`-th highest rank of the positions, and how many of those with that rank belong to the
// `count` highest. Byte by byte from the highest, so that it takes no memory of the prompt's
// length. REQUIRES: 0 < count <= their number.
struct Threshold {
  uint32_t rank = 0;
  int64_t equals = 0;
};
template <class Rank>
Threshold highest(const Rank& rank_at, const Positions& of, int64_t count) {
  Threshold found{0, count};
  uint32_t known = 0;  // Bits of the rank that are found
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::array<int64_t, 256> counts{};
    for (int64_t i = of.first; i < of.end; ++i) {
      const uint32_t rank = rank_at(i);
      if ((rank & known) == found.rank) ++counts[rank >> shift & 255];
    }
    uint32_t digit = 255;
    for (; counts[digit] < found.equals; --digit) found.equals -= counts[digit];
    found.rank |= digit << shift;
    known |= 255u << shift;
  }
  return found;
}

// Chooses the `count` positions with the highest ranks, of equal ones the latest, in order.
template <class Rank>
void choose_heavy(const Rank& rank_at, const Positions& of, int64_t count, int32_t* chosen) {
  if (count == 0) return;
  const Threshold least = highest(rank_at, of, count);
  int64_t skipped = 0;  // Of the equal ones the earliest
  for (int64_t i = of.first; i < of.end; ++i) skipped += rank_at(i) == least.rank ? 1 : 0;
  skipped -= least.equals;
  for (int64_t i = of.first; i < of.end; ++i) {
    const uint32_t rank = rank_at(i);
    if (rank < least.rank || (rank == least.rank && skipped-- > 0)) continue;
    *chosen++ = static_cast<int32_t>(i);
  }
}

// Makes snap's scores (kernels/ops.h) of the sums, or the highest, of the weights that the last
// queries of a prompt gave its positions, `heads` query heads together.
void smooth(const KvBudget& budget, int64_t prompt, int64_t heads, float* scores) {
  const int64_t end = budget.scored_from(prompt);
  float before[2] = {0, 0};  // What the two positions before had
  double total = 0;
  for (int64_t i = 0; i < end; ++i) {
    const float own = scores[i];
    const float after[2] = {i + 1 < end ? scores[i + 1] : 0, i + 2 < end ? scores[i + 2] : 0};
    scores[i] = (before[0] + before[1] + own + after[0] + after[1]) / 5;
    before[0] = std::exchange(before[1], own);
    total += double{scores[i]};
  }
  if (budget.score != KvScore::kSnapMax) return;
  const auto mean = static_cast<float>(total / static_cast<double>(std::max<int64_t>(1, end)));
  const auto weights = static_cast<float>((prompt - end) * heads);
  for (int64_t i = 0; i < end; ++i) scores[i] = std::max(scores[i], mean) * weights;
  for (int64_t i = end; i < prompt; ++i) scores[i] *= weights;
}

// Chooses `count` of the positions below `old` that a budget keeps of a prompt, in order.
void choose(const KvBudget& budget, const PromptView& prompt, int64_t old, int64_t count,
            int32_t* chosen) {
  if (!budget.by_score || count == old) return std::iota(chosen, chosen + count, 0);
  const HeadView& view = prompt.head;
  const int64_t first = std::min(budget.first, old);
  // Of snap's window of queries, what lies before the recent positions
  const int64_t end = budget.snaps() ? std::clamp(prompt.scored_from, first, old) : old;
  const int64_t window = std::min(old - end, count - first);
  std::iota(chosen, chosen + first, 0);
  std::iota(chosen + count - window, chosen + count, old - window);
  const auto best = [&](const auto& rank_at) {
    choose_heavy(rank_at, {first, end}, count - first - window, chosen + first);
  };
  if (budget.random()) {
    best([&](int64_t i) { return view.draw.rank(i); });
  } else {
    best([&](int64_t i) { return rank_of(view.scores[i]); });
  }
}

// Moves the rows of a prompt from their slots of chunks to those of a budget, in place: a slot is
// filled when its own row has moved or goes. What fills what are chains and cycles.
class RowMoves {
 public:
  // positions: the `count` that are kept besides the recent ones, in order.
  RowMoves(const HeadView& view, const KvBudget& budget, int64_t prompt, const int32_t* positions,
           int64_t count, std::byte* scratch)
      : view_(view),
        budget_(budget),
        ring_(budget.ring()),
        prompt_(prompt),
        old_(std::max<int64_t>(0, prompt - budget.recent)),
        positions_(positions),
        count_(count),
        row_(scratch),
        filled_(scratch + 2 * view.kv_row_bytes) {}

  void run() {
    std::fill_n(filled_, filled_bytes(ring_ + count_), std::byte{0});
    for (int64_t slot = 0; slot < ring_ + count_; ++slot) {
      if (target(slot) < 0) fill_chain(slot);
    }
    for (int64_t slot = 0; slot < ring_ + count_; ++slot) {
      const int64_t from = source(slot);
      if (from >= 0 && from != slot && !filled(slot)) fill_cycle(slot);
    }
  }

  static size_t filled_bytes(int64_t slots) { return static_cast<size_t>(slots + 7) / 8; }

 private:
  // The slot whose row belongs into this one, or -1.
  int64_t source(int64_t slot) const {
    if (slot >= ring_) return slot < ring_ + count_ ? positions_[slot - ring_] : -1;
    const int64_t position = last_in(ring_, slot);
    return position >= old_ ? budget_.chunked_slot(position) : -1;
  }
  // The slot to which this one's row belongs, or -1.
  int64_t target(int64_t slot) const {
    if (slot >= budget_.in_chunks(prompt_)) return -1;
    const int64_t position = budget_.chunk_ring == 0 ? slot : last_in(budget_.chunk_ring, slot);
    if (position >= old_) return position % ring_;
    if (count_ == 0) return -1;
    const int32_t* const end = positions_ + count_;
    const int32_t* found = std::lower_bound(positions_, end, static_cast<int32_t>(slot));
    return found != end && *found == slot ? ring_ + (found - positions_) : -1;
  }
  // The prompt's last position whose slot of a ring this is.
  int64_t last_in(int64_t ring, int64_t slot) const {
    return prompt_ - 1 - (prompt_ - 1 - slot + ring) % ring;
  }
  void fill_chain(int64_t slot) {
    for (int64_t from = source(slot); from >= 0; from = source(slot)) {
      std::memcpy(view_.key_at(slot), view_.key_at(from), view_.kv_row_bytes);
      std::memcpy(view_.value_at(slot), view_.value_at(from), view_.kv_row_bytes);
      set_filled(slot);
      slot = from;
    }
  }
  void fill_cycle(int64_t first) {
    const size_t bytes = view_.kv_row_bytes;
    std::memcpy(row_, view_.key_at(first), bytes);
    std::memcpy(row_ + bytes, view_.value_at(first), bytes);
    int64_t slot = first;
    for (int64_t from = source(slot); from != first; from = source(slot)) {
      std::memcpy(view_.key_at(slot), view_.key_at(from), bytes);
      std::memcpy(view_.value_at(slot), view_.value_at(from), bytes);
      set_filled(slot);
      slot = from;
    }
    std::memcpy(view_.key_at(slot), row_, bytes);
    std::memcpy(view_.value_at(slot), row_ + bytes, bytes);
    set_filled(slot);
  }
  bool filled(int64_t slot) const {
    return (filled_[slot / 8] >> (slot % 8) & std::byte{1}) != std::byte{0};
  }
  void set_filled(int64_t slot) { filled_[slot / 8] |= std::byte{1} << (slot % 8); }

  const HeadView& view_;
  const KvBudget& budget_;
  const int64_t ring_, prompt_, old_;  // Positions from old_ on are recent.
  const int32_t* positions_;
  const int64_t count_;
  std::byte* row_;     // A key and a value
  std::byte* filled_;  // Bit by bit: slots that have their row
};

// The kept row with the lowest score; of equal scores the earliest position.
int64_t lowest(const KvBudget& budget, const KvHeadState& state) {
  const float* scores = state.scores + budget.ring();
  int64_t best = 0;
  for (int64_t i = 1; i < budget.kept; ++i) {
    if (scores[i] > scores[best]) continue;
    if (scores[i] < scores[best] || state.positions[i] < state.positions[best]) best = i;
  }
  return best;
}

// What a kept position drew.
uint32_t drawn(const KvBudget& budget, const KvDraw& draw, int64_t position) {
  return position < budget.first ? KvDraw::kProtected : draw.rank(position);
}

// The kept row that drew the lowest; of equal ones the earliest position.
int64_t lowest_drawn(const KvBudget& budget, const KvDraw& draw, const KvHeadState& state) {
  int64_t best = 0;
  uint32_t least = drawn(budget, draw, state.positions[0]);
  for (int64_t i = 1; i < budget.kept; ++i) {
    const uint32_t rank = drawn(budget, draw, state.positions[i]);
    if (rank > least || (rank == least && state.positions[i] > state.positions[best])) continue;
    best = i;
    least = rank;
  }
  return best;
}

// The kept row in whose place the candidate of slot `from` is kept, or -1: by score none of them is
// lower.
int64_t place_by_score(const HeadView& view, const KvBudget& budget, const KvHeadState& state,
                       int64_t candidate, int64_t from) {
  if (budget.random()) {
    const int64_t place = lowest_drawn(budget, view.draw, state);
    const bool lower = view.draw.rank(candidate) < drawn(budget, view.draw, state.positions[place]);
    return lower ? -1 : place;
  }
  const int64_t place = lowest(budget, state);
  return state.scores[from] < state.scores[budget.ring() + place] ? -1 : place;
}

}  // namespace

size_t keep_scratch_bytes(const KvBudget& budget, size_t row_bytes) {
  return round_up(2 * row_bytes + RowMoves::filled_bytes(budget.ring() + budget.kept), 64);
}

void keep_prompt(const PromptView& prompt, const KvBudget& budget, const KvHeadState& state,
                 std::byte* scratch) {
  const HeadView& view = prompt.head;
  const int64_t tokens = prompt.keys(), old = std::max<int64_t>(0, tokens - budget.recent);
  const int64_t count = std::min(budget.kept, old);
  if (budget.scored() && budget.snaps()) smooth(budget, tokens, prompt.group, view.scores);
  choose(budget, prompt, old, count, state.positions);
  if (prompt.in_place()) {
    RowMoves(view, budget, tokens, state.positions, count, scratch).run();
  } else {
    keep_recent(prompt, budget);
    for (int64_t i = 0; i < count; ++i) keep_row(prompt, state.positions[i], budget.ring() + i);
  }
  if (state.moved != nullptr) *state.moved = -1;
  if (!budget.scored()) return;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t position = state.positions[i];
    state.scores[budget.ring() + i] = position < budget.first ? kStays : view.scores[position];
  }
  for (int64_t token = old; token < tokens; ++token) {
    state.scores[budget.slot(token)] = view.scores[token];
  }
}

void keep_step(const HeadView& view, const KvBudget& budget, int64_t position,
               const KvHeadState& state) {
  if (!budget.has_state()) return;
  *state.moved = -1;
  // The position that leaves the recent window competes for a slot of the kept ones.
  const int64_t candidate = position - budget.recent;
  if (candidate < 0) return;
  const int64_t from = budget.slot(candidate);
  // While slots are free, every position is kept, in order: the first ones find one in any case.
  int64_t place = candidate;
  if (candidate >= budget.kept) {
    if (!budget.by_score) return;
    place = place_by_score(view, budget, state, candidate, from);
    if (place < 0) return;
  }
  const int64_t to = budget.ring() + place;
  std::memcpy(view.key_at(to), view.key_at(from), view.kv_row_bytes);
  std::memcpy(view.value_at(to), view.value_at(from), view.kv_row_bytes);
  state.positions[place] = static_cast<int32_t>(candidate);
  *state.moved = static_cast<int32_t>(to);
  if (budget.scored()) state.scores[to] = candidate < budget.first ? kStays : state.scores[from];
}

}  // namespace spillway::cpu
