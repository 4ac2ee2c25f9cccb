// What the disk gives a benchmark's run, in whichever sizes and numbers of requests it likes best:
// a ceiling must not be the way in which the engine happens to ask.
#pragma once

#include "server/cli/bench/bench_result.h"
#include "server/runtime.h"

namespace spillway {

// Reading from the weights' file if some are there, else after the run from the cache that the run
// left, else from a new file; writing to a new one, where the plan writes. Blocks for some seconds.
// An error of the disk is one of the run.
Status measure_disk_ceilings(Device& device, const Plan& plan, bool after_run,
                             MeasuredCeilings* found);

}  // namespace spillway
