// A simulated run's timeline as a trace (kernels/base/trace.h): a track for each link and
// processor, and beside each processor one of what it waited for. Any thread.
#pragma once

#include "kernels/base/trace.h"
#include "policy/simulation/simulated_run.h"

namespace spillway {

// Idle resources have a track, too. REQUIRES: finish_run() was called.
void write_timeline(const SimulatedRun& run, Trace& trace);

}  // namespace spillway
