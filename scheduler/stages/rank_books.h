// RankBooks: which sequences have caches on the other ranks, and whether there is room for more.
// That follows from what was reserved and released there, in its order (KvCache), so that nobody
// need be asked, and sweeps need not wait for an answer: the next one tells the changes.
//
// Thread rule: one thread; sequence_bytes() and check_holds() from any.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "offload/kv_cache.h"
#include "scheduler/engine/sweep.h"
#include "scheduler/stages/other_ranks.h"
#include "scheduler/stages/stage_messages.h"

namespace spillway {

class RankBooks {
 public:
  // `caches`: how rank 1 and those after it opened theirs. Where each is several ranks, which share
  // its layers, of so many of each. `after_name`: behind a rank's name in errors. kCapacity: no
  // memory.
  static Result<RankBooks> open(const std::vector<KvCacheOptions>& caches, int of_each = 1,
                                const std::string& after_name = {});

  // As OtherRanks'.
  uint64_t sequence_bytes(int64_t rows, const KvBudget& budget, const KvChunks& chunks) const;
  Status check_holds(int64_t rows, const KvBudget& budget, const KvChunks& chunks) const;
  Status reserve(const KvSequence* sequence, int64_t rows, const KvBudget& budget,
                 const KvChunks& chunks);
  void release(const KvSequence* sequence);

  // A sweep of these items, with the changes since the last one that was told().
  StageSweep sweep_of(std::span<const SweepItem> items) const;
  void told() { changes_.clear(); }

 private:
  struct Reserved {
    uint64_t id = 0;
    std::vector<std::unique_ptr<KvSequence>> places;  // In the books
  };

  std::string name(size_t book) const {
    return "rank " + std::to_string(book / static_cast<size_t>(of_each_) + 1) + after_name_;
  }

  int of_each_ = 1;
  std::string after_name_;
  std::vector<std::unique_ptr<KvCache>> books_;  // Of rank 1 and those after it
  std::unordered_map<const KvSequence*, Reserved> live_;
  std::vector<StageKvChange> changes_;  // That the next sweep tells
  uint64_t last_id_ = 0;
};

// OtherRanks with books of their caches.
class BookedRanks : public OtherRanks {
 public:
  uint64_t sequence_bytes(int64_t rows, const KvBudget& budget,
                          const KvChunks& chunks) const override {
    return books_.sequence_bytes(rows, budget, chunks);
  }
  Status check_holds(int64_t rows, const KvBudget& budget, const KvChunks& chunks) const override {
    return books_.check_holds(rows, budget, chunks);
  }
  Status reserve(const KvSequence* sequence, int64_t rows, const KvBudget& budget,
                 const KvChunks& chunks) override {
    return books_.reserve(sequence, rows, budget, chunks);
  }
  void release(const KvSequence* sequence) override { books_.release(sequence); }

 protected:
  explicit BookedRanks(RankBooks books) : books_(std::move(books)) {}

  RankBooks books_;
};

}  // namespace spillway
