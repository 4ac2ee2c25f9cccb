// OtherRanks: those that hold a model together with the rank that schedules, and follow what it
// says. Either they are pipeline stages, whose layers come before its own, or they share every
// layer with it. It has the requests, the head and all that is sampled.
//
// A sweep has two halves: start() sends it to the others, and finish() takes the rows that come out
// of the stages before this rank's layers; ranks that share layers run beside it. Of stages as many
// sweeps can be under way as there are stages, so that all have work.
//
// Thread rule: the engine thread; sequence_bytes() and check_holds() from any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "offload/kv_cache.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/sweep.h"

namespace spillway {

// Behind the name of one of so many ranks that share the layers of a pipeline stage, which is a
// rank, too: "rank 1 of the 2 here".
inline std::string of_ranks_here(int ranks) {
  return " of the " + std::to_string(ranks) + " here";
}

class OtherRanks {
 public:
  virtual ~OtherRanks() = default;  // Ends them.

  // How many sweeps can be under way.
  virtual int64_t sweeps_at_once() const = 0;

  // As KvCache's, for the caches of all of these ranks. kCapacity of reserve(): one has no room.
  virtual uint64_t sequence_bytes(int64_t rows, const KvBudget& budget,
                                  const KvChunks& chunks) const = 0;
  virtual Status check_holds(int64_t rows, const KvBudget& budget,
                             const KvChunks& chunks) const = 0;
  virtual Status reserve(const KvSequence* sequence, int64_t rows, const KvBudget& budget,
                         const KvChunks& chunks) = 0;
  // Does not fail or allocate. REQUIRES: reserved, and no sweep with it is under way.
  virtual void release(const KvSequence* sequence) = 0;

  // Does not wait for any rank. REQUIRES: each item's `kv` is reserved; fewer than
  // sweeps_at_once() are under way.
  virtual Status start(std::span<const SweepItem> items) = 0;

  // The oldest sweep under way. Blocks. The rows are valid until the next call. An error concerns
  // the whole sweep, as of Engine::run(); kDeviceLost: a rank is gone.
  struct Rows {
    std::span<const float> hidden;  // StageRows::in of the rank's layers
    ItemFailures failures;          // On ranks that have run
    RankPeers* peers = nullptr;     // StageRows::peers
  };
  virtual Result<Rows> finish() = 0;

  // Called after the rank's own part of a sweep, whatever its status: the sweep's, with the reason
  // that another rank gives where it failed there, or the items that failed elsewhere since.
  virtual Result<ItemFailures> settle(Status own) = 0;
};

}  // namespace spillway
