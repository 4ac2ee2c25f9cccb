#include "server/cli/common/stage_command.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "kernels/ranks/mpi_mail.h"
#include "server/cli/flags/command_line.h"

namespace spillway {

namespace {

// Open MPI's, in each process that mpirun starts; 1 without it. Slurm starts arrays of single
// processes, too, whose variables say nothing.
int64_t started_processes() {
  const char* text = std::getenv("OMPI_COMM_WORLD_SIZE");
  return text == nullptr ? 1 : std::max<int64_t>(1, std::atoll(text));
}

}  // namespace

std::optional<int> start_stages(const char* command, const std::string& model,
                                const EngineFlags& flags, std::shared_ptr<StageRank>* rank) {
  if (flags.stages == 1) {
    const int64_t started = started_processes();
    if (started == 1) return std::nullopt;
    return report(command, invalid_argument(
                               "mpirun has started " + std::to_string(started) +
                               " processes, each of which would do all of this; add --stages " +
                               std::to_string(started) + " for a model that lies in all of them"));
  }
  Result<std::unique_ptr<RankMail>> mail = mpi_mail();
  if (!mail.ok()) return report(command, mail.status());
  // Until this ends: MPI waits at its end for all, and what is to be said is said before.
  const std::shared_ptr<RankMail> shared = std::move(mail).value();
  const bool leads = shared->rank() == 0;
  auto joined = join_stages(shared, flags);
  if (leads && joined.ok()) {
    *rank = std::move(joined).value();
    return std::nullopt;
  }
  if (leads) return report(command, joined.status());
  Status status = joined.status();
  if (joined.ok()) {
    // Rank 0 finishes what it has begun, and then tells the others.
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_IGN);
    status = follow_stages(*joined.value(), model, flags);
  }
  // All other errors are reported by rank 0, whose exit status is to be that of the run.
  if (status.code() != Code::kDeviceLost) return static_cast<int>(kExitSuccess);
  const int code = report(command, status);
  std::fflush(nullptr);
  std::_Exit(
      code);  // Without MPI's end, so that the launcher ends the ranks that wait for this one.
}

}  // namespace spillway
