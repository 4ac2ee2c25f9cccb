// What sequences need of the KV cache: at most, and likely. Engine thread only.
#pragma once

#include <cstdint>

#include "offload/kv_cache.h"
#include "policy/expected_tokens.h"
#include "scheduler/sequence.h"

namespace spillway {

class KvNeeds {
 public:
  // `grow`: sequences get their cache as they grow; else each takes at once what it needs at most.
  // The cache must outlive the object.
  KvNeeds(const KvCache& cache, bool grow) : cache_(cache), grow_(grow) {}

  bool grow() const { return grow_; }

  // Whether this one gets its cache as it grows, and may be set aside: if it keeps every row.
  bool grows(const Sequence& sequence) const { return grow_ && sequence.promise().budget.full(); }

  uint64_t most_bytes(const Sequence& sequence) const;
  // The most that it takes when it is set aside, where each layer takes whole sectors.
  uint64_t aside_bytes(const Sequence& sequence) const;
  // Beside the blocks that it shares.
  uint64_t likely_bytes(const Sequence& sequence) const;

  // The positions for which a sequence that joins a sweep gets its cache; 0: all.
  int64_t positions_at_first(const Sequence& sequence) const;

  // Counts tokens that were generated, and sequences that ended by a stop.
  void count(int64_t tokens, int64_t ends) { expected_.add(tokens, ends); }

 private:
  const KvCache& cache_;
  const bool grow_;
  ExpectedTokens expected_;
};

}  // namespace spillway
