// This process as one of those that mpirun or srun started. For the files of this folder.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <string>

#include "kernels/base/status.h"

namespace spillway {

std::string mpi_error_text(int error);

struct MpiProcess {
  // All processes, in a communicator of our own, so that no other user's messages are taken for
  // ours. Its errors are returned.
  MPI_Comm all = MPI_COMM_NULL;
  int rank = 0, size = 0;
};

// Starts MPI, at the first call. kInfeasible: it cannot be started, or has ended, or may only be
// used from the first thread.
Result<MpiProcess> join_mpi();

// Ends MPI; `failed`: aborts the job, since the others may wait for this process for ever.
void leave_mpi(MpiProcess* process, bool failed);

}  // namespace spillway
