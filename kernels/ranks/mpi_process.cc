#include "kernels/ranks/mpi_process.h"

namespace spillway {

std::string mpi_error_text(int error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) return "unknown error";
  return {text, static_cast<size_t>(length)};
}

Result<MpiProcess> join_mpi() {
  int begun = 0, ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  if (ended != 0) return Status(Code::kInfeasible, "MPI has ended in this process");
  if (begun == 0) {
    int provided = 0;
    const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    if (error != MPI_SUCCESS) return Status(Code::kInfeasible, "MPI: " + mpi_error_text(error));
    if (provided < MPI_THREAD_SERIALIZED) {
      return Status(Code::kInfeasible,
                    "this MPI may be used from the first thread only, and the engine has its own");
    }
  }
  MpiProcess process;
  int error = MPI_Comm_dup(MPI_COMM_WORLD, &process.all);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(process.all, MPI_ERRORS_RETURN);
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(process.all, &process.rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(process.all, &process.size);
  if (error != MPI_SUCCESS) return Status(Code::kInfeasible, "MPI: " + mpi_error_text(error));
  return process;
}

void leave_mpi(MpiProcess* process, bool failed) {
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0) return;
  if (failed) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Comm_free(&process->all);
  MPI_Finalize();
}

}  // namespace spillway
