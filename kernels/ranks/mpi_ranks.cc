#include "kernels/ranks/mpi_ranks.h"

#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/ranks/mpi_process.h"

namespace spillway {
namespace {

constexpr int kTag = 1;

// Host memory for bytes of a device that MPI does not reach.
class Stage {
 public:
  Stage(Stream& stream, size_t bytes)
      : stream_(stream), direct_(stream.kind() == DeviceKind::kCpu) {
    if (!direct_) memory_.resize(bytes);
  }
  // What MPI reads for `data`, whose work is done.
  Result<const std::byte*> read(const std::byte* data, size_t bytes) {
    if (direct_) return data;
    stream_.copy(memory_.data(), data, bytes);
    SPILLWAY_RETURN_IF_ERROR(stream_.record().wait());
    return static_cast<const std::byte*>(memory_.data());
  }
  // Where MPI writes for `data`.
  std::byte* target(std::byte* data) { return direct_ ? data : memory_.data(); }
  Status write(std::byte* data, size_t bytes) {
    if (direct_) return {};
    stream_.copy(data, memory_.data(), bytes);
    return stream_.record().wait();  // The memory is gone with this.
  }

 private:
  Stream& stream_;
  const bool direct_;
  std::vector<std::byte> memory_;
};

class MpiRank final : public RankGroup {
 public:
  explicit MpiRank(const MpiProcess& process)
      : RankGroup(process.rank, process.size), process_(process), all_(process.all) {}

  ~MpiRank() override { leave_mpi(&process_, !broken_.ok()); }

  Status all_gather(Stream& stream, const std::byte* from, std::byte* to, size_t bytes) override {
    SPILLWAY_RETURN_IF_ERROR(check(bytes * static_cast<size_t>(size()), 0));
    Stage part(stream, bytes), whole(stream, bytes * static_cast<size_t>(size()));
    SPILLWAY_ASSIGN_OR_RETURN(const std::byte* const mine, part.read(from, bytes));
    std::byte* const all = whole.target(to);
    const bool in_place = mine == all + static_cast<size_t>(rank()) * bytes;
    const int count = static_cast<int>(bytes);
    SPILLWAY_RETURN_IF_ERROR(done(
        MPI_Allgather(in_place ? MPI_IN_PLACE : mine, count, MPI_BYTE, all, count, MPI_BYTE, all_),
        "all_gather"));
    return whole.write(to, bytes * static_cast<size_t>(size()));
  }

  Status broadcast(Stream& stream, std::byte* data, size_t bytes, int root) override {
    SPILLWAY_RETURN_IF_ERROR(check(bytes, root));
    Stage stage(stream, bytes);
    if (rank() == root) SPILLWAY_RETURN_IF_ERROR(stage.read(data, bytes).status());
    std::byte* const target = stage.target(data);
    SPILLWAY_RETURN_IF_ERROR(
        done(MPI_Bcast(target, static_cast<int>(bytes), MPI_BYTE, root, all_), "broadcast"));
    return rank() == root ? Status() : stage.write(data, bytes);
  }

  Status send(Stream& stream, const std::byte* data, size_t bytes, int to) override {
    SPILLWAY_RETURN_IF_ERROR(check_pair(bytes, to));
    Stage stage(stream, bytes);
    SPILLWAY_ASSIGN_OR_RETURN(const std::byte* const source, stage.read(data, bytes));
    return done(MPI_Send(source, static_cast<int>(bytes), MPI_BYTE, to, kTag, all_), "send");
  }

  Status receive(Stream& stream, std::byte* data, size_t bytes, int from) override {
    SPILLWAY_RETURN_IF_ERROR(check_pair(bytes, from));
    Stage stage(stream, bytes);
    MPI_Status status;
    SPILLWAY_RETURN_IF_ERROR(done(
        MPI_Recv(stage.target(data), static_cast<int>(bytes), MPI_BYTE, from, kTag, all_, &status),
        "receive"));
    int got = 0;
    MPI_Get_count(&status, MPI_BYTE, &got);
    if (static_cast<size_t>(got) != bytes) {
      broken_ = invalid_argument("rank " + std::to_string(from) + " sent " + std::to_string(got) +
                                 " bytes, and rank " + std::to_string(rank()) + " expects " +
                                 std::to_string(bytes));
      return broken_;
    }
    return stage.write(data, bytes);
  }

  // The others learn of it when this group ends, which aborts the job.
  void leave() override {
    if (broken_.ok()) {
      broken_ = Status(Code::kDeviceLost, "rank " + std::to_string(rank()) + " has left");
    }
  }

 private:
  Status check(size_t bytes, int peer) const {
    SPILLWAY_RETURN_IF_ERROR(broken_);
    if (bytes > INT_MAX) {
      return invalid_argument(std::to_string(bytes) + " bytes are more than MPI takes in one call");
    }
    if (peer < 0 || peer >= size()) {
      return invalid_argument("there is no rank " + std::to_string(peer) + " of " +
                              std::to_string(size()));
    }
    return {};
  }

  Status check_pair(size_t bytes, int peer) const {
    if (peer == rank()) return invalid_argument("a rank sends nothing to itself");
    return check(bytes, peer);
  }

  Status done(int error, const char* what) {
    if (error == MPI_SUCCESS) return {};
    int kind = 0;
    MPI_Error_class(error, &kind);
    broken_ = Status(kind == MPI_ERR_TRUNCATE ? Code::kInvalidArgument : Code::kDeviceLost,
                     "rank " + std::to_string(rank()) + " of " + std::to_string(size()) + ": " +
                         what + ": " + mpi_error_text(error));
    return broken_;
  }

  MpiProcess process_;
  const MPI_Comm all_;
  Status broken_;
};

}  // namespace

bool started_by_mpi() {
  // Open MPI's launcher, and PMI and PMIx, which Slurm and MPICH use.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

Result<std::unique_ptr<RankGroup>> mpi_ranks() {
  SPILLWAY_ASSIGN_OR_RETURN(const MpiProcess process, join_mpi());
  return std::unique_ptr<RankGroup>(std::make_unique<MpiRank>(process));
}

}  // namespace spillway
