// The definition of what a KV budget keeps (kernels/ops.h), as a list of rows in order of their
// positions, and the same list read from a cache as the kernels lay it out.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/base/kv_random.h"
#include "kernels/kv_layout.h"
#include "kernels/kv_state.h"
#include "tests/support/scalar_ops.h"

namespace spillway::test {

struct KeptRow {
  int64_t position = 0;
  double score = 0;
  scalar::Matrix key, value;
};

// Of one sequence, layer and KV head.
class KeptRows {
 public:
  explicit KeptRows(const KvBudget& budget, int64_t layer = 0, int64_t kv_head = 0)
      : budget_(budget), draw_(KvDraw::key_of(budget.seed, layer), kv_head) {}

  const std::vector<KeptRow>& rows() const { return rows_; }

  // Takes a device's choice, the positions that it keeps, between rows whose scores differ by no
  // more than `tolerance` of them: its products round.
  void follow(const std::vector<int64_t>& kept, double tolerance);

  // A prompt: its keys and values [S, size], and the queries of every head that shares them
  // [heads][S, size]. `round` makes of a row what the cache gives back, which is what queries
  // attend to. Returns each head's outputs [S, size].
  std::vector<scalar::Matrix> prompt(
      const scalar::Matrix& keys, const scalar::Matrix& values,
      const std::vector<scalar::Matrix>& queries, int64_t size,
      const std::function<scalar::Matrix(const scalar::Matrix&)>& round,
      const scalar::Attention& how = {});

  // A decode step at `position`: its row, already rounded, and the query of every head.
  std::vector<scalar::Matrix> step(int64_t position, const scalar::Matrix& key,
                                   const scalar::Matrix& value,
                                   const std::vector<scalar::Matrix>& queries, double scale = 0);

 private:
  void drop_to_budget(int64_t positions);
  void keep_by_last_queries(int64_t tokens, int64_t queries, int64_t heads);

  KvBudget budget_;
  KvDraw draw_;
  std::vector<KeptRow> rows_;
  std::vector<KeptRow> dropped_;  // By the last prompt or step
};

// What the cache of a layer holds of a head after `positions` positions, in order of position.
std::vector<KeptRow> read_kept_rows(const KvLayout& layout, const KvBudget& budget,
                                    int64_t positions, const std::byte* kv, std::byte* state,
                                    int64_t head);

}  // namespace spillway::test
