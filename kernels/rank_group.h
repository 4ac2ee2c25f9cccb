// RankGroup: the ranks that hold a model together, and what they say to each other. A rank is one
// device with its engine: a thread of this process (thread_ranks.h), a process on this or another
// host (mpi_ranks.h), or a GPU (cuda/nccl_ranks.h); a group of one needs none of these.
//
// As in MPI and NCCL, calls are collective: every rank makes the same ones in the same order with
// the same sizes. They are queued on a stream behind what computes their data, and later work of
// that stream finds their results. On a CPU's stream they are done when they return.
//
// Errors: kDeviceLost when another rank is gone or has failed, kInvalidArgument when ranks make
// different calls; every later call of the group gives the same error. What fails after a call has
// returned (on a GPU) poisons the stream, whose sync() says so.
//
// Thread rule: one thread a rank at a time.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/base/status.h"
#include "kernels/device.h"

namespace spillway {

class RankGroup {
 public:
  // A rank that leaves while others are in a call, or before their next one, ends it for them.
  virtual ~RankGroup() = default;

  int rank() const { return rank_; }  // From 0
  int size() const { return size_; }

  // Puts the parts of all ranks, `bytes` of each, into `to` by rank: size() * bytes of them, on
  // every rank. `from` may be the rank's own place in `to`. Device memory of the stream's device.
  virtual Status all_gather(Stream& stream, const std::byte* from, std::byte* to, size_t bytes) = 0;

  // `data` of rank `root` to all others.
  virtual Status broadcast(Stream& stream, std::byte* data, size_t bytes, int root) = 0;

  // The other rank receives as many bytes. May wait until it does.
  virtual Status send(Stream& stream, const std::byte* data, size_t bytes, int to) = 0;
  virtual Status receive(Stream& stream, std::byte* data, size_t bytes, int from) = 0;

  // What this rank computes has failed, so that it makes no more calls: those of the others, under
  // way or still to come, end with kDeviceLost.
  virtual void leave() = 0;

 protected:
  RankGroup(int rank, int size) : rank_(rank), size_(size) {}

 private:
  const int rank_, size_;
};

// The group of one: all_gather copies, send and receive are kInvalidArgument.
std::unique_ptr<RankGroup> single_rank();

}  // namespace spillway
