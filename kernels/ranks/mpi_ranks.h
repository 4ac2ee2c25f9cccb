// Ranks that are processes started by mpirun or srun, on one host or several (MPI 3, section
// "Point-to-Point" and "Collective Communication").
//
// Thread rule: MPI is used from one thread at a time, which need not be the one that opened it.
#pragma once

#include <memory>

#include "kernels/rank_group.h"

namespace spillway {

// Whether this process was started as one of several, by what launchers leave in its environment;
// MPI is not asked, and not started.
bool started_by_mpi();

// Starts MPI, at the first call, and returns the group of all processes. A rank whose process dies
// takes all others with it: the launcher ends them. kInfeasible: MPI cannot be started.
//
// The group's destructor ends MPI if all went well; after an error it aborts the job, since the
// others may wait for this rank for ever. Memory of a discrete device goes through host memory, and
// calls with it wait for the stream. At most INT_MAX bytes a call.
Result<std::unique_ptr<RankGroup>> mpi_ranks();

}  // namespace spillway
