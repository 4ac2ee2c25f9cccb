// Choice of the rows that a limited KV budget keeps (base/kv_budget.h). O(rows) per step, against
// the rows * head size of the attention before it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cpu/attention_body.h"

namespace spillway::cpu {

namespace {

// Stores the last `budget.recent` positions into the ring, in one or two runs of slots.
void store_recent(const HeadView& view, const KvBudget& budget) {
  for (int64_t token = std::max<int64_t>(0, view.tokens - budget.recent); token < view.tokens;) {
    const int64_t slot = budget.slot(token);
    const int64_t count = std::min(view.tokens - token, budget.ring() - slot);
    store_rows(view, token, count, slot);
    token += count;
  }
}

// Chooses the `count` positions below `end` with the highest scores, of equal ones the latest, in
// order. `order` is [end].
void choose_heavy(const float* scores, int64_t end, int64_t count, int32_t* order,
                  int32_t* chosen) {
  std::iota(order, order + end, 0);
  // Weights that are not finite make NaN scores, which would have no order.
  const auto value = [&](int32_t position) {
    return std::isnan(scores[position]) ? -1.0f : scores[position];
  };
  std::nth_element(order, order + count, order + end, [&](int32_t a, int32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a > b;
  });
  std::sort(order, order + count);
  std::copy_n(order, count, chosen);
}

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

}  // namespace

void keep_prompt(const HeadView& view, const KvBudget& budget, const KvHeadState& state,
                 float* scratch) {
  store_recent(view, budget);
  const int64_t old = std::max<int64_t>(0, view.tokens - budget.recent);
  const int64_t count = std::min(budget.kept, old);
  if (budget.scored() && count < old) {
    choose_heavy(view.scores, old, count, reinterpret_cast<int32_t*>(scratch), state.positions);
  } else {
    std::iota(state.positions, state.positions + count, 0);
  }
  for (int64_t i = 0; i < count; ++i) {
    store_rows(view, state.positions[i], 1, budget.ring() + i);
  }
  if (state.moved != nullptr) *state.moved = -1;
  if (!budget.scored()) return;
  for (int64_t i = 0; i < count; ++i) {
    state.scores[budget.ring() + i] = view.scores[state.positions[i]];
  }
  for (int64_t token = old; token < view.tokens; ++token) {
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
  int64_t place = candidate;  // While slots are free, every position is kept, in order.
  if (candidate >= budget.kept) {
    if (!budget.by_score) return;
    place = lowest(budget, state);
    if (state.scores[from] < state.scores[budget.ring() + place]) return;
  }
  const int64_t to = budget.ring() + place;
  std::memcpy(view.key_at(to), view.key_at(from), view.kv_row_bytes);
  std::memcpy(view.value_at(to), view.value_at(from), view.kv_row_bytes);
  state.positions[place] = static_cast<int32_t>(candidate);
  *state.moved = static_cast<int32_t>(to);
  if (budget.by_score) state.scores[to] = state.scores[from];
}

}  // namespace spillway::cpu
