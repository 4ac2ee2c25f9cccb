// OtherRanks that share every layer with rank 0 (kernels/base/rank_shape.h), over mail: all get
// each sweep, and run it together; what they compute goes from rank to rank over a RankGroup.
//
// Once a sweep has failed on one rank the group is broken, and all later ones fail, too.
#pragma once

#include <memory>
#include <vector>

#include "kernels/rank_group.h"
#include "kernels/rank_mail.h"
#include "offload/kv_cache.h"
#include "scheduler/stages/other_ranks.h"

namespace spillway {

// `group`: rank 0's, as its engine has it. `caches`: how rank 1 and those after it opened theirs.
// `of_stage`: they are ranks of a pipeline stage, which errors say.
// `followers`: let go once the ranks have been told to end, which the object's end does; it may
// wait for them. Mail, unless it is theirs, and group outlive the object. kCapacity: no memory.
Result<std::unique_ptr<OtherRanks>> layer_ranks(RankMail& mail, RankGroup& group,
                                                const std::vector<KvCacheOptions>& caches,
                                                bool of_stage = false,
                                                std::shared_ptr<void> followers = {});

}  // namespace spillway
