#include "tests/support/kept_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace spillway::test {

namespace {

scalar::Matrix row_of(const scalar::Matrix& matrix, int64_t row, int64_t size) {
  const auto first = matrix.begin() + row * size;
  return {first, first + size};
}

scalar::Matrix unpack(const KvLayout& layout, const std::byte* from) {
  scalar::Matrix row(static_cast<size_t>(layout.head_size));
  if (is_quantized(layout.format)) {
    unpack_quantized_row(layout.format, from, row);
  } else {
    convert_elements(element_of(layout.format), from, DType::kF32,
                     reinterpret_cast<std::byte*>(row.data()), row.size());
  }
  return row;
}

}  // namespace

// Drops one row after another: the lowest score, or the latest that is none of the first, outside
// the recent positions; of equal scores the earliest. Protected positions have the score infinity
// there.
void KeptRows::drop_to_budget(int64_t positions) {
  dropped_.clear();
  if (budget_.full()) return;
  for (KeptRow& row : rows_) {
    if (budget_.random()) row.score = draw_.rank(row.position);
    if (row.position < std::min(budget_.first, positions - budget_.recent)) row.score = INFINITY;
  }
  while (static_cast<int64_t>(rows_.size()) > budget_.kept + budget_.recent) {
    size_t drop = 0;
    for (size_t i = 0; i < rows_.size() && rows_[i].position < positions - budget_.recent; ++i) {
      if (!budget_.by_score || rows_[i].score < rows_[drop].score) drop = i;
    }
    dropped_.push_back(rows_[drop]);
    rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(drop));
  }
}

void KeptRows::follow(const std::vector<int64_t>& kept, double tolerance) {
  const auto is_kept = [&](const KeptRow& row) {
    return std::find(kept.begin(), kept.end(), row.position) != kept.end();
  };
  for (KeptRow& dropped : dropped_) {
    if (!is_kept(dropped)) continue;
    for (KeptRow& row : rows_) {
      if (is_kept(row) || std::abs(row.score - dropped.score) > tolerance * std::abs(row.score))
        continue;
      std::swap(row, dropped);
      break;
    }
  }
  std::sort(rows_.begin(), rows_.end(),
            [](const KeptRow& a, const KeptRow& b) { return a.position < b.position; });
}

// Snap at the end of a prompt: the rows' scores are the sums, or the highest, of the weights of its
// last queries.
void KeptRows::keep_by_last_queries(int64_t tokens, int64_t queries, int64_t heads) {
  const auto before = static_cast<size_t>(std::max<int64_t>(0, tokens - queries));
  std::vector<double> padded(before + 4);
  for (size_t i = 0; i < before; ++i) padded[i + 2] = rows_[i].score;
  double sum = 0;
  for (size_t i = 0; i < before; ++i) {
    rows_[i].score = std::accumulate(padded.begin() + static_cast<std::ptrdiff_t>(i),
                                     padded.begin() + static_cast<std::ptrdiff_t>(i) + 5, 0.0) /
                     5;
    sum += rows_[i].score;
  }
  if (budget_.score == KvScore::kSnapMax) {
    const auto weights = static_cast<double>((tokens - static_cast<int64_t>(before)) * heads);
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (i < before) rows_[i].score = std::max(rows_[i].score, sum / static_cast<double>(before));
      rows_[i].score *= weights;
    }
  }
  // While the choice is made, the window's rows are above all others.
  const std::vector<KeptRow> scored = rows_;
  for (size_t i = before; i < rows_.size(); ++i) rows_[i].score = 1e30;
  drop_to_budget(tokens);
  for (KeptRow& row : rows_) {
    if (row.score == 1e30) row.score = scored[static_cast<size_t>(row.position)].score;
  }
}

std::vector<scalar::Matrix> KeptRows::prompt(
    const scalar::Matrix& keys, const scalar::Matrix& values,
    const std::vector<scalar::Matrix>& queries, int64_t size,
    const std::function<scalar::Matrix(const scalar::Matrix&)>& round,
    const scalar::Attention& how) {
  const int64_t tokens = static_cast<int64_t>(keys.size()) / size;
  const bool snap = budget_.score == KvScore::kSnapMean || budget_.score == KvScore::kSnapMax;
  int64_t last = tokens;  // Queries, from the end, whose weights count
  if (snap) last = tokens < 256 ? 32 : 64;
  if (snap && budget_.recent + budget_.kept < last) last = budget_.recent;
  scalar::Matrix cached_keys, cached_values;
  for (int64_t j = 0; j < tokens; ++j) {
    rows_.push_back({j, 0, round(row_of(keys, j, size)), round(row_of(values, j, size))});
    const KeptRow& row = rows_.back();
    cached_keys.insert(cached_keys.end(), row.key.begin(), row.key.end());
    cached_values.insert(cached_values.end(), row.value.begin(), row.value.end());
  }
  std::vector<scalar::Matrix> outputs;
  for (const scalar::Matrix& head : queries) {
    scalar::Matrix out;
    for (int64_t i = 0; i < tokens; ++i) {
      std::vector<double> weights;
      const scalar::Matrix row = scalar::attend(head.data() + i * size, cached_keys, cached_values,
                                                i + 1, size, &weights, how);
      out.insert(out.end(), row.begin(), row.end());
      if (i < tokens - last) continue;
      for (size_t j = 0; j < weights.size(); ++j) {
        double& score = rows_[j].score;
        score =
            budget_.score == KvScore::kSnapMax ? std::max(score, weights[j]) : score + weights[j];
      }
    }
    outputs.push_back(std::move(out));
  }
  if (snap) {
    keep_by_last_queries(tokens, last, static_cast<int64_t>(queries.size()));
  } else {
    drop_to_budget(tokens);
  }
  return outputs;
}

std::vector<scalar::Matrix> KeptRows::step(int64_t position, const scalar::Matrix& key,
                                           const scalar::Matrix& value,
                                           const std::vector<scalar::Matrix>& queries,
                                           double scale) {
  rows_.push_back({position, 0, key, value});
  scalar::Matrix keys, values;
  for (const KeptRow& row : rows_) {
    keys.insert(keys.end(), row.key.begin(), row.key.end());
    values.insert(values.end(), row.value.begin(), row.value.end());
  }
  std::vector<scalar::Matrix> outputs;
  for (const scalar::Matrix& query : queries) {
    std::vector<double> weights;
    outputs.push_back(scalar::attend(query.data(), keys, values, static_cast<int64_t>(rows_.size()),
                                     static_cast<int64_t>(key.size()), &weights, {0, scale}));
    for (size_t j = 0; j < weights.size(); ++j) rows_[j].score += weights[j];
  }
  drop_to_budget(position + 1);
  return outputs;
}

std::vector<KeptRow> read_kept_rows(const KvLayout& layout, const KvBudget& budget,
                                    int64_t positions, const std::byte* kv, std::byte* state,
                                    int64_t head) {
  KvHeadState of_head;
  of_head = KvStateLayout{layout.heads, budget}.head(state, head);
  std::vector<KeptRow> rows;
  const auto add = [&](int64_t position, int64_t slot) {
    const double score = of_head.scores == nullptr ? 0 : of_head.scores[slot];
    const std::byte* at = kv + layout.run_offset(slot / kKvBlockRows, head) +
                          static_cast<size_t>(slot % kKvBlockRows) * layout.row_bytes();
    rows.push_back(
        {position, score, unpack(layout, at), unpack(layout, at + layout.value_offset())});
  };
  const int64_t first_recent = budget.full() ? 0 : std::max<int64_t>(0, positions - budget.recent);
  for (int64_t i = 0; i < budget.rows(positions) - (positions - first_recent); ++i) {
    add(of_head.positions[i], budget.ring() + i);
  }
  for (int64_t position = first_recent; position < positions; ++position) {
    add(position, budget.slot(position));
  }
  std::sort(rows.begin(), rows.end(),
            [](const KeptRow& a, const KeptRow& b) { return a.position < b.position; });
  return rows;
}

}  // namespace spillway::test
