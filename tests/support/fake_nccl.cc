// NCCL on the fake runtime: what a rank calls is queued on its stream and done when all ranks'
// streams have come to it. It refuses what NCCL refuses, and more: a call on another GPU's stream
// or with memory of another GPU, calls that differ between ranks (order, size, type, root), a
// communicator after its end. What never comes to its end the fake runtime reports, since streams
// wait for each other.
#include "kernels/cuda/nccl_api.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "tests/support/fake_cudart_state.h"
#include "tests/support/fake_nccl.h"

namespace spillway {
namespace {

using fake_cudart::Lock;

enum class Kind : uint8_t { kAllGather, kBroadcast, kPair };

// One call of the group, or one message from a rank to another.
struct Operation {
  Kind kind = Kind::kAllGather;
  size_t bytes = 0;
  int root = 0;   // Of a pair: who sends
  int ranks = 0;  // That take part
  int queued = 0, arrived = 0, taken = 0;
  std::vector<const void*> from;
};

struct Clique {
  int size = 0;
  std::vector<int> devices;
  // By number, of the whole group; by sender and receiver, of pairs.
  std::map<uint64_t, std::shared_ptr<Operation>> all;
  std::map<std::pair<int, int>, std::map<uint64_t, std::shared_ptr<Operation>>> pairs;
  int left = 0;
  bool broken = false;
};

}  // namespace
}  // namespace spillway

struct ncclComm {
  std::shared_ptr<spillway::Clique> clique;
  int rank = 0;
  int device = 0;
  uint64_t calls = 0;
  std::map<std::pair<int, int>, uint64_t> messages;
};

namespace spillway {
namespace {

std::map<std::string, std::shared_ptr<Clique>>& cliques() {
  static std::map<std::string, std::shared_ptr<Clique>> all;
  return all;
}

int alive = 0;
int waiting =
    0;  // Calls at the front of a stream that go on when other ranks do, or have made theirs

ncclResult_t refused(ncclComm_t comm) {
  if (comm != nullptr) comm->clique->broken = true;
  return ncclInvalidUsage;
}

bool usable(ncclComm_t comm, cudaStream_t stream) {
  return comm != nullptr && comm->clique != nullptr && !comm->clique->broken && stream != nullptr &&
         fake_cudart::current(comm->device) && stream->device == comm->device;
}

// Memory that the runtime knows must be the communicator's GPU's.
bool on_device(const void* memory, int device) {
  const auto after = fake_cudart::fake().device.upper_bound(const_cast<void*>(memory));
  if (after == fake_cudart::fake().device.begin()) return false;
  const auto& [begin, of] = *std::prev(after);
  const auto* at = static_cast<const std::byte*>(memory);
  return at < static_cast<const std::byte*>(begin) + of.bytes && of.device == device;
}

// Joins the operation with others' calls, then queues this rank's part of it.
ncclResult_t queue(ncclComm_t comm, std::shared_ptr<Operation>& operation, const Operation& mine,
                   const void* from, void* to, cudaStream_t stream) {
  if (operation == nullptr) {
    operation = std::make_shared<Operation>(mine);
    operation->from.resize(static_cast<size_t>(comm->clique->size));
  }
  if (operation->kind != mine.kind || operation->bytes != mine.bytes ||
      operation->root != mine.root) {
    return refused(comm);
  }
  ++operation->queued;
  fake_cudart::queue(stream, [operation, from, to, rank = comm->rank, arrived = false, took = false,
                              clique = comm->clique]() mutable {
    if (clique->broken) return true;  // Aborted
    if (!arrived) {
      operation->from[static_cast<size_t>(rank)] = from;
      ++operation->arrived;
      arrived = true;
      ++waiting;  // For another's turn, which may come in the next round
    }
    if (operation->arrived < operation->ranks) {
      if (operation->queued < operation->ranks) ++waiting;
      return false;
    }
    if (!took) {
      const size_t bytes = operation->bytes;
      if (operation->kind == Kind::kAllGather) {
        for (size_t other = 0; other < operation->from.size(); ++other) {
          std::byte* const place = static_cast<std::byte*>(to) + other * bytes;
          if (place != operation->from[other]) std::memcpy(place, operation->from[other], bytes);
        }
      } else if (rank != operation->root) {
        std::memcpy(to, operation->from[static_cast<size_t>(operation->root)], bytes);
      }
      ++operation->taken;
      took = true;
      ++waiting;
    }
    return operation->taken == operation->ranks;  // Until then others may read this rank's memory.
  });
  return ncclSuccess;
}

ncclResult_t of_all(ncclComm_t comm, const Operation& mine, const void* from, void* to,
                    cudaStream_t stream) {
  std::shared_ptr<Operation>& operation = comm->clique->all[comm->calls++];
  return queue(comm, operation, mine, from, to, stream);
}

ncclResult_t of_pair(ncclComm_t comm, int sender, int receiver, size_t bytes, const void* from,
                     void* to, cudaStream_t stream) {
  const std::pair<int, int> pair = {sender, receiver};
  std::shared_ptr<Operation>& operation = comm->clique->pairs[pair][comm->messages[pair]++];
  Operation mine;
  mine.kind = Kind::kPair;
  mine.bytes = bytes;
  mine.root = sender;
  mine.ranks = 2;
  return queue(comm, operation, mine, from, to, stream);
}

ncclComm_t join(const std::shared_ptr<Clique>& clique, int rank, int device) {
  ++alive;
  return new ncclComm{clique, rank, device, 0, {}};
}

ncclResult_t get_version(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* error_string(ncclResult_t result) {
  return result == ncclInvalidUsage ? "invalid usage" : "an error of the fake";
}

ncclResult_t unique_id(ncclUniqueId* id) {
  const Lock lock(fake_cudart::mutex());
  static int made = 0;
  std::memset(id, 0, sizeof(*id));
  const std::string text = "clique " + std::to_string(++made);
  std::memcpy(id->internal, text.c_str(), text.size());
  return ncclSuccess;
}

ncclResult_t init_all(ncclComm_t* comms, int count, const int* devices) {
  const Lock lock(fake_cudart::mutex());
  auto clique = std::make_shared<Clique>();
  clique->size = count;
  for (int rank = 0; rank < count; ++rank) {
    const int device = devices == nullptr ? rank : devices[rank];
    if (device < 0 || device >= fake_cudart::kDevices) return ncclInvalidArgument;
    comms[rank] = join(clique, rank, device);
  }
  return ncclSuccess;
}

// The real one waits for the others here; their calls wait all the same.
ncclResult_t init_rank(ncclComm_t* comm, int count, ncclUniqueId id, int rank) {
  const Lock lock(fake_cudart::mutex());
  std::shared_ptr<Clique>& clique = cliques()[std::string(id.internal, 32)];
  if (clique == nullptr) {
    clique = std::make_shared<Clique>();
    clique->size = count;
  }
  if (clique->size != count || rank < 0 || rank >= count) return ncclInvalidArgument;
  int device = 0;
  while (!fake_cudart::current(device)) ++device;
  for (const int other : clique->devices) {
    if (other == device) return ncclInvalidUsage;  // "Duplicate GPU detected"
  }
  clique->devices.push_back(device);
  *comm = join(clique, rank, device);
  return ncclSuccess;
}

ncclResult_t end(ncclComm_t comm, bool breaks) {
  const Lock lock(fake_cudart::mutex());
  if (comm == nullptr || comm->clique == nullptr) return ncclInvalidArgument;
  if (breaks) comm->clique->broken = true;
  --alive;
  delete comm;
  return ncclSuccess;
}
ncclResult_t destroy(ncclComm_t comm) {
  return end(comm, false);
}
ncclResult_t abort(ncclComm_t comm) {
  return end(comm, true);
}

ncclResult_t async_error(ncclComm_t comm, ncclResult_t* error) {
  const Lock lock(fake_cudart::mutex());
  *error = comm->clique->broken ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t all_gather(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclComm_t comm, cudaStream_t stream) {
  const Lock lock(fake_cudart::mutex());
  if (!usable(comm, stream) || type != ncclUint8 || !on_device(from, comm->device) ||
      !on_device(to, comm->device)) {
    return refused(comm);
  }
  return of_all(comm, {Kind::kAllGather, count, 0, comm->clique->size, 0, 0, 0, {}}, from, to,
                stream);
}

ncclResult_t broadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t stream) {
  const Lock lock(fake_cudart::mutex());
  if (!usable(comm, stream) || type != ncclUint8 || root < 0 || root >= comm->clique->size ||
      !on_device(to, comm->device)) {
    return refused(comm);
  }
  return of_all(comm, {Kind::kBroadcast, count, root, comm->clique->size, 0, 0, 0, {}}, from, to,
                stream);
}

ncclResult_t send(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  const Lock lock(fake_cudart::mutex());
  if (!usable(comm, stream) || type != ncclUint8 || peer < 0 || peer >= comm->clique->size ||
      !on_device(from, comm->device)) {
    return refused(comm);
  }
  return of_pair(comm, comm->rank, peer, count, from, nullptr, stream);
}

ncclResult_t receive(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
  const Lock lock(fake_cudart::mutex());
  if (!usable(comm, stream) || type != ncclUint8 || peer < 0 || peer >= comm->clique->size ||
      !on_device(to, comm->device)) {
    return refused(comm);
  }
  return of_pair(comm, peer, comm->rank, count, nullptr, to, stream);
}

}  // namespace

namespace cuda {

Result<const NcclApi*> nccl_api() {
  static const NcclApi api = {get_version, error_string, unique_id,  init_all,  init_rank, destroy,
                              abort,       async_error,  all_gather, broadcast, send,      receive};
  return &api;
}

}  // namespace cuda

namespace fake_nccl {

int communicators() {
  const Lock lock(fake_cudart::mutex());
  return alive;
}

namespace {
double patience_seconds = 60;
}
void set_patience(double seconds) {
  patience_seconds = seconds;
}

bool wait_for_ranks(double began) {
  if (std::exchange(waiting, 0) == 0 || steady_seconds() - began > patience_seconds) return false;
  fake_cudart::mutex().unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(50));
  fake_cudart::mutex().lock();
  return true;
}

}  // namespace fake_nccl
}  // namespace spillway
