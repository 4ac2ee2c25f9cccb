// Beginnings of prompts for sequences under limited KV rules, each used as a whole: under h2o a
// position's score is the sum over the queries of exactly these positions, so that a part of a
// beginning is no beginning (PrefixCache, which may be cut anywhere, is for sequences that keep
// every row). A sequence uses one until the end of its prompt, when it chooses the rows that it
// keeps.
//
// What nobody uses stays until its memory is needed, and goes the least recently found first.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "offload/kv_cache.h"
#include "scheduler/request.h"

namespace spillway {

class WholeBeginnings {
 public:
  explicit WholeBeginnings(KvCache& cache) : cache_(cache) {}
  ~WholeBeginnings();  // REQUIRES: nobody uses any.
  WholeBeginnings(const WholeBeginnings&) = delete;
  WholeBeginnings& operator=(const WholeBeginnings&) = delete;

  struct Beginning {
    CacheSalt salt;
    std::vector<int32_t> tokens;
    KvPages pages;
    bool computed = false;
    int64_t blocks() const { return pages.blocks; }
    bool scored() const { return !pages.states.empty(); }
  };
  // Whoever has one uses it.
  using Use = std::shared_ptr<Beginning>;

  // Whether a budget needs the scores that a beginning's own queries give.
  static bool needs_scores(const KvBudget& budget) { return budget.scored() && !budget.snaps(); }

  struct Found {
    Use beginning;                 // The longest that has been computed; null: none
    int64_t computing_blocks = 0;  // Of the longest that somebody computes now
  };
  // Of those of at most so many blocks with which the prompt begins; `scored`: with scores alone.
  Found find(const CacheSalt& salt, std::span<const int32_t> prompt, int64_t blocks_max,
             bool scored);

  // Adds the first `blocks` KV blocks of a prompt, with scores where the budget needs them, for
  // whoever gets them to compute and then to mark. Null: there is no room now (evict() may make
  // some).
  Use add(const CacheSalt& salt, std::span<const int32_t> prompt, int64_t blocks,
          const KvBudget& budget);
  // The bytes that it takes.
  uint64_t bytes_for(int64_t blocks, const KvBudget& budget, int64_t prompt) const;

  // Removes one that nobody uses: one that was never computed, or else the one that was found least
  // recently. False: none. Allocates nothing.
  bool evict();

  uint64_t bytes() const;
  uint64_t used_bytes() const;

 private:
  uint64_t bytes_of(const Beginning& beginning) const;

  KvCache& cache_;
  std::list<Use> all_;  // By when they were found last
};

}  // namespace spillway
