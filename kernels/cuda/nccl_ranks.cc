#include <string>

#include "kernels/ranks/gpu_ranks.h"

#if __has_include(<nccl.h>)

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/nccl_api.h"

namespace spillway {
namespace cuda {
namespace {

Status nccl_status(const NcclApi& api, ncclResult_t result, const std::string& what) {
  if (result == ncclSuccess || result == ncclInProgress) return {};
  const bool ours = result == ncclInvalidArgument || result == ncclInvalidUsage;
  return {ours ? Code::kInvalidArgument : Code::kDeviceLost,
          what + ": NCCL: " + api.error_string(result)};
}

// The communicators of this process, so that one rank's leaving frees the others' streams, which
// would wait for it for ever: NCCL aborts a communicator on its own rank alone.
struct Communicators {
  explicit Communicators(size_t count) : all(count) {}

  struct One {
    std::timed_mutex in_use;    // While its rank queues a call
    ncclComm_t comm = nullptr;  // Null: ended
  };
  std::atomic<int> left{-1};  // The first rank that left
  std::vector<One> all;       // By rank, or the only one of this process
};

class NcclRank final : public RankGroup {
 public:
  // `index`: the place of this rank's communicator.
  NcclRank(const NcclApi& api, std::shared_ptr<Communicators> group, size_t index, int rank,
           int size)
      : RankGroup(rank, size), api_(api), group_(std::move(group)), own_(group_->all[index]) {}
  ~NcclRank() override {
    // Destroying waits for what is queued, which after an error may never end.
    if (!broken_.ok() || group_->left >= 0) {
      NcclRank::leave();
      return;
    }
    const std::lock_guard lock(own_.in_use);
    if (own_.comm != nullptr) api_.destroy(std::exchange(own_.comm, nullptr));
  }

  void leave() override {
    int none = -1;
    group_->left.compare_exchange_strong(none, rank());
    abort_all();
  }

  Status all_gather(Stream& stream, const std::byte* from, std::byte* to, size_t bytes) override {
    return call(stream, "all_gather", bytes, [&](cudaStream_t queue) {
      return api_.all_gather(from, to, bytes, ncclUint8, own_.comm, queue);
    });
  }

  Status broadcast(Stream& stream, std::byte* data, size_t bytes, int root) override {
    SPILLWAY_RETURN_IF_ERROR(check_rank(root));
    return call(stream, "broadcast", bytes, [&](cudaStream_t queue) {
      return api_.broadcast(data, data, bytes, ncclUint8, root, own_.comm, queue);
    });
  }

  Status send(Stream& stream, const std::byte* data, size_t bytes, int to) override {
    SPILLWAY_RETURN_IF_ERROR(check_other(to));
    return call(stream, "send", bytes, [&](cudaStream_t queue) {
      return api_.send(data, bytes, ncclUint8, to, own_.comm, queue);
    });
  }

  Status receive(Stream& stream, std::byte* data, size_t bytes, int from) override {
    SPILLWAY_RETURN_IF_ERROR(check_other(from));
    return call(stream, "receive", bytes, [&](cudaStream_t queue) {
      return api_.receive(data, bytes, ncclUint8, from, own_.comm, queue);
    });
  }

 private:
  // A rank that queues a call is waited for, but not longer than that takes: NCCL's first call may
  // itself wait for the rank that leaves, and an abort is what ends it.
  void abort_all() {
    constexpr std::chrono::seconds kQueueing{2};
    for (Communicators::One& one : group_->all) {
      const std::unique_lock lock(one.in_use, kQueueing);
      if (one.comm != nullptr) api_.abort(std::exchange(one.comm, nullptr));
    }
  }

  Status check_rank(int rank) const {
    if (rank >= 0 && rank < size()) return {};
    return invalid_argument("there is no rank " + std::to_string(rank) + " of " +
                            std::to_string(size()));
  }

  Status check_other(int other) const {
    if (other == rank()) return invalid_argument("a rank sends nothing to itself");
    return check_rank(other);
  }

  template <class Queue>
  Status call(Stream& stream, const char* what, size_t bytes, const Queue& queue) {
    SPILLWAY_RETURN_IF_ERROR(broken_);
    SPILLWAY_CHECK(stream.kind() == DeviceKind::kCuda);
    auto* const context = static_cast<CudaContext*>(stream.native());
    if (context == nullptr) return stream.sync(0);
    if (!context->ready()) return context->status();
    const std::string where =
        "rank " + std::to_string(rank()) + " of " + std::to_string(size()) + ": " + what;
    const std::lock_guard lock(own_.in_use);
    if (own_.comm == nullptr || group_->left >= 0) {
      broken_ = Status(Code::kDeviceLost, "rank " + std::to_string(group_->left) + " is gone");
      return broken_;
    }
    ncclResult_t earlier = ncclSuccess;
    ncclResult_t result = api_.async_error(own_.comm, &earlier);
    if (result == ncclSuccess) result = earlier;
    if (result == ncclSuccess && bytes > 0) {
      begin_span(*context, what, "bytes", static_cast<int64_t>(bytes));
      result = queue(context->stream());
      end_span(*context);
    }
    broken_ = nccl_status(api_, result, where);
    return broken_;
  }

  const NcclApi& api_;
  const std::shared_ptr<Communicators> group_;
  Communicators::One& own_;
  Status broken_;
};

}  // namespace
}  // namespace cuda

Result<std::vector<std::unique_ptr<RankGroup>>> gpu_ranks(std::span<const int> gpus) {
  if (gpus.empty()) return invalid_argument("a group of GPUs needs one at least");
  if (std::set<int>(gpus.begin(), gpus.end()).size() != gpus.size()) {
    return invalid_argument("a GPU is named twice; each can be one rank");
  }
  SPILLWAY_ASSIGN_OR_RETURN(const cuda::NcclApi* const api, cuda::nccl_api());
  std::vector<ncclComm_t> comms(gpus.size());
  SPILLWAY_RETURN_IF_ERROR(cuda::nccl_status(
      *api, api->init_all(comms.data(), static_cast<int>(gpus.size()), gpus.data()),
      "joining " + std::to_string(gpus.size()) + " GPUs"));
  const auto group = std::make_shared<cuda::Communicators>(gpus.size());
  for (size_t rank = 0; rank < comms.size(); ++rank) group->all[rank].comm = comms[rank];
  std::vector<std::unique_ptr<RankGroup>> ranks;
  for (size_t rank = 0; rank < comms.size(); ++rank) {
    ranks.push_back(std::make_unique<cuda::NcclRank>(*api, group, rank, static_cast<int>(rank),
                                                     static_cast<int>(comms.size())));
  }
  return ranks;
}

Result<std::unique_ptr<RankGroup>> gpu_rank(RankGroup& processes, Stream& host, int gpu) {
  SPILLWAY_ASSIGN_OR_RETURN(const cuda::NcclApi* const api, cuda::nccl_api());
  ncclUniqueId id{};
  const std::string what = "joining " + std::to_string(processes.size()) + " processes";
  if (processes.rank() == 0) {
    SPILLWAY_RETURN_IF_ERROR(cuda::nccl_status(*api, api->unique_id(&id), what));
  }
  SPILLWAY_RETURN_IF_ERROR(
      processes.broadcast(host, reinterpret_cast<std::byte*>(&id), sizeof(id), 0));
  SPILLWAY_RETURN_IF_ERROR(cuda::status_of(cuda::use_device(gpu), "choosing the device"));
  ncclComm_t comm = nullptr;
  SPILLWAY_RETURN_IF_ERROR(
      cuda::nccl_status(*api, api->init_rank(&comm, processes.size(), id, processes.rank()), what));
  const auto own = std::make_shared<cuda::Communicators>(1);
  own->all[0].comm = comm;
  return std::unique_ptr<RankGroup>(
      std::make_unique<cuda::NcclRank>(*api, own, 0, processes.rank(), processes.size()));
}

}  // namespace spillway

#else  // A toolkit without NCCL's header

namespace spillway {

Result<std::vector<std::unique_ptr<RankGroup>>> gpu_ranks(std::span<const int>) {
  return not_found("this build has no NCCL: its header nccl.h was not there");
}

Result<std::unique_ptr<RankGroup>> gpu_rank(RankGroup&, Stream&, int) {
  return not_found("this build has no NCCL: its header nccl.h was not there");
}

}  // namespace spillway

#endif
