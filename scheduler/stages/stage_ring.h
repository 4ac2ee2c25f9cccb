// OtherRanks that are pipeline stages, over mail: rank 0 sends a sweep to rank 1, which has the
// first layers, each rank hands its rows on to the next, and the last one to rank 0.
#pragma once

#include <memory>
#include <vector>

#include "kernels/rank_mail.h"
#include "offload/kv_cache.h"
#include "scheduler/stages/other_ranks.h"

namespace spillway {

// `caches`: how rank 1 and those after it opened theirs; where each stage is several ranks, of so
// many of each. `hidden`: numbers of a row. Mail outlives the ring, whose end tells the ranks to
// end. kCapacity: no memory.
Result<std::unique_ptr<OtherRanks>> stage_ring(RankMail& mail, int64_t hidden,
                                               const std::vector<KvCacheOptions>& caches,
                                               int of_each = 1);

// Tells all other ranks that nothing more will come.
void end_ranks(RankMail& mail);

}  // namespace spillway
