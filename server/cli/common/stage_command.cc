#include "server/cli/common/stage_command.h"

#include <algorithm>
#include <csignal>
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
  const bool leads = mail.value()->rank() == 0;
  auto joined = join_stages(std::move(mail).value(), flags);
  if (!joined.ok()) {
    return leads ? report(command, joined.status()) : static_cast<int>(kExitFailure);
  }
  if (leads) {
    *rank = std::move(joined).value();
    return std::nullopt;
  }
  // Rank 0 finishes what it has begun, and then tells the others.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  const Status status = follow_stages(*joined.value(), model, flags);
  if (status.code() == Code::kDeviceLost) return report(command, status);
  return static_cast<int>(status.ok() ? kExitSuccess : kExitFailure);
}

}  // namespace spillway
