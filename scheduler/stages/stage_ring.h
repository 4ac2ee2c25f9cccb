// EarlierStages over mail: rank 0 sends a sweep to rank 1, which has the first layers, each rank
// hands its rows on to the next, and the last one to rank 0.
//
// The ring keeps the books of the other ranks' caches: whether and where they have room follows
// from what was reserved and released, in its order (KvCache), so that nobody need be asked, and
// sweeps need not wait for an answer.
#pragma once

#include <memory>
#include <vector>

#include "kernels/rank_mail.h"
#include "offload/kv_cache.h"
#include "scheduler/stages/earlier_stages.h"

namespace spillway {

// `caches`: how rank 1 and those after it opened theirs. `hidden`: numbers of a row. Mail outlives
// the ring, whose end tells the ranks to end. kCapacity: no memory.
Result<std::unique_ptr<EarlierStages>> stage_ring(RankMail& mail, int64_t hidden,
                                                  std::vector<KvCacheOptions> caches);

}  // namespace spillway
