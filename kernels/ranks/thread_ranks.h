// Ranks that are threads of one process, each with its own CPU device: `--ranks N`, and tests of
// all that is built on a RankGroup.
#pragma once

#include <memory>
#include <vector>

#include "kernels/rank_group.h"

namespace spillway {

// One group's ranks, each for a thread of its own. Streams must be of a CPU. Where all ranks wait
// and none can go on (two that send to each other, different calls) all get kInvalidArgument, which
// names the calls. REQUIRES: size > 0.
std::vector<std::unique_ptr<RankGroup>> thread_ranks(int size);

}  // namespace spillway
