// Mail between processes started by mpirun or srun (MPI 3, section "Nonblocking Communication").
#pragma once

#include <memory>

#include "kernels/rank_mail.h"

namespace spillway {

// Starts MPI. A thread of its own does all that MPI does, so that messages travel while ranks
// compute, and sleeps between looks while there are none, where MPI's own waits would keep a core
// busy. A rank whose process dies takes all others with it: the launcher ends them. The mail's end
// waits for that of all other ranks, and until then drops what they send.
//
// kInfeasible: MPI cannot be started.
Result<std::unique_ptr<RankMail>> mpi_mail();

}  // namespace spillway
