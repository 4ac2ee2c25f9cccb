// Background transfers between memory and files, each verified and, on a mismatch, tried once more.
// The caller decides what to move, when, and into which memory.
//
// Thread rule: one thread starts a transfer and waits for it; `arrived` and `verify` run on a
// thread of the Io. A Transfer must not be moved or destroyed while it is under way.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "kernels/base/status.h"
#include "kernels/base/trace.h"
#include "offload/io/io.h"

namespace spillway {

class TransferQueue;

struct Transfer : IoRequest {  // The queue uses `done` and `owner`.
  void* user = nullptr;        // For the callbacks, with `index`
  uint64_t index = 0;

  // Checks the bytes after a read; null: no check. On an error the queue reads once more; a second
  // error is the transfer's status.
  Status (*verify)(const Transfer& transfer) = nullptr;

  // Called when the transfer has ended, with or without error. May start others, or this one again.
  // Null: not called.
  void (*arrived)(Transfer& transfer) = nullptr;

  // Used by the queue, under its lock.
  bool under_way = false;
  bool again = false;  // The second attempt
  double started = 0;
  Status status;
};

// What has gone over a link since the start: bytes of transfers that ended well, and the seconds in
// which at least one was under way, those that are now included.
struct LinkUse {
  uint64_t bytes = 0;
  double busy_seconds = 0;
};

class TransferQueue {
 public:
  // `io` and `trace` (null: none) must outlive the queue.
  TransferQueue(Io& io, Trace* trace);
  ~TransferQueue();  // Waits for everything that is under way.

  Io& io() { return io_; }

  // REQUIRES: not under way.
  void start(Transfer& transfer);

  bool done(const Transfer& transfer) const;

  // Blocks until the transfer has ended; returns its status. A transfer never started is OK.
  Status wait(const Transfer& transfer);

  // The transfers of one direction. Any thread.
  LinkUse use(IoRequest::Kind direction) const;

 private:
  static void on_done(IoRequest& request, Status status);
  void finish(Transfer& transfer, Status status);
  void record(const Transfer& transfer);
  void count_end(const Transfer& transfer);  // REQUIRES: the lock is held.

  // One direction, under the lock.
  struct Direction {
    LinkUse use;  // Up to `busy_since`
    uint64_t under_way = 0;
    double busy_since = 0;  // While something is under way
  };

  Io& io_;
  Trace* trace_;
  Trace::Track read_track_{}, write_track_{};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t under_way_ = 0;
  std::array<Direction, 2> directions_;  // By IoRequest::Kind
};

}  // namespace spillway
