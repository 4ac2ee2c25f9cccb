// A rank that follows. A pipeline stage runs its layers on the sweeps that come from the stage
// before it, and hands their rows on to the next one; a rank that shares every layer with the
// others runs the sweeps that rank 0 starts, and tells it how they went.
#pragma once

#include <cstdint>

#include "kernels/base/status.h"
#include "kernels/rank_mail.h"
#include "scheduler/engine/engine.h"
#include "scheduler/stages/other_ranks.h"

namespace spillway {

// Stages are run through in the order of their layers: rank 1 has the first, and rank 0, which
// schedules, the last.
inline int stage_of_rank(int rank, int ranks) {
  return rank == 0 ? ranks - 1 : rank - 1;
}
inline int next_rank(int rank, int ranks) {
  return rank + 1 == ranks ? 0 : rank + 1;
}

// Runs until rank 0 says that there is no more, which is OK. `engine` has a range of layers that
// does not include the last, or EngineOptions::ranks, or both: then it is the first of these ranks,
// and `followers` are the others, which share its layers. Errors of a sweep are rank 0's to report,
// and end nothing. kDeviceLost: mail is lost, or damaged, and rank 0 may wait for ever for what
// does not come. Blocks.
Status run_stage(RankMail& mail, Engine& engine, OtherRanks* followers = nullptr);

}  // namespace spillway
