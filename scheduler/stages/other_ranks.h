// EarlierStages: the pipeline stages whose layers come before those of the rank that schedules.
// Where several processes hold a model, each runs a range of its layers; the rank with the last
// layers and the head has the requests, and the others follow what it says (stage_ring.h).
//
// A sweep has two halves: start() sends it into the first stage, and finish() takes the rows that
// come out of the last one, which the rank's own layers go on with. As many sweeps can be under way
// as there are stages, so that all have work.
//
// Thread rule: the engine thread; sequence_bytes() and check_holds() from any.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "offload/kv_cache.h"
#include "scheduler/engine/sweep.h"

namespace spillway {

class EarlierStages {
 public:
  virtual ~EarlierStages() = default;  // Ends them.

  // All stages, the scheduling rank's among them.
  virtual int64_t stages() const = 0;

  // As KvCache's, for the caches of all of these stages. kCapacity of reserve(): one has no room.
  virtual uint64_t sequence_bytes(int64_t rows, const KvBudget& budget,
                                  const KvChunks& chunks) const = 0;
  virtual Status check_holds(int64_t rows, const KvBudget& budget,
                             const KvChunks& chunks) const = 0;
  virtual Status reserve(const KvSequence* sequence, int64_t rows, const KvBudget& budget,
                         const KvChunks& chunks) = 0;
  // Does not fail or allocate. REQUIRES: reserved, and no sweep with it is under way.
  virtual void release(const KvSequence* sequence) = 0;

  // Does not wait for any stage. REQUIRES: each item's `kv` is reserved; fewer sweeps are under way
  // than there are stages.
  virtual Status start(std::span<const SweepItem> items) = 0;

  // The oldest sweep under way. Blocks. The rows are valid until the next call. An error concerns
  // the whole sweep, as of Engine::run(); kDeviceLost: a stage is gone.
  struct Rows {
    std::span<const float> hidden;                    // StageRows::in of the next layers
    std::vector<std::pair<size_t, Status>> failures;  // Items whose cache could not be read
  };
  virtual Result<Rows> finish() = 0;
};

}  // namespace spillway
