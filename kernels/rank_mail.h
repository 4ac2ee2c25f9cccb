// RankMail: messages between the ranks of a run, of any size and in any number, which neither side
// has to expect: what pipeline stages say to each other (scheduler/stages/). A RankGroup's calls,
// in contrast, are the same on all ranks (rank_group.h).
//
// Thread rule: post() from any thread, receive() from one.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

class RankMail {
 public:
  virtual ~RankMail() = default;  // Waits until what was posted is on its way, unless mail is lost.

  int rank() const { return rank_; }  // From 0
  int size() const { return size_; }

  struct Message {
    int from = 0;
    std::vector<std::byte> bytes;
  };

  // Sends a message and does not wait for its delivery. Messages of one rank to another arrive in
  // their order. An error of the connection is what receive() returns later.
  virtual void post(int to, std::vector<std::byte> bytes) = 0;

  // The next message from any other rank. Blocks. kDeviceLost: another rank is gone, or the
  // connection has failed; for ever after.
  virtual Result<Message> receive() = 0;

 protected:
  RankMail(int rank, int size) : rank_(rank), size_(size) {}

 private:
  const int rank_, size_;
};

}  // namespace spillway
