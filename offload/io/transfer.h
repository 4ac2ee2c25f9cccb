// Transfers between memory and files in the background, each verified and, when it came out wrong,
// tried once more. What to move, when, and into which memory is the caller's business.
//
// Thread rule: one thread starts a transfer and waits for it; `arrived` and `verify` run on a
// thread of the Io. A Transfer must not move or die while it is under way.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "kernels/base/status.h"
#include "kernels/base/trace.h"
#include "offload/io/io.h"

namespace spillway {

class TransferQueue;

struct Transfer : IoRequest {  // `done` and `owner` are the queue's.
  void* user = nullptr;        // For the callbacks, with `index`
  uint64_t index = 0;

  // After a read: are these the bytes that were written? Null: not asked. An error makes the queue
  // read once more, then it is the transfer's.
  Status (*verify)(const Transfer& transfer) = nullptr;

  // The transfer has ended, well or badly. May start others, or this one again. Null: nobody cares.
  void (*arrived)(Transfer& transfer) = nullptr;

  // The queue's, under its lock.
  bool under_way = false;
  bool again = false;  // The second attempt
  double started = 0;
  Status status;
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

  // Blocks until the transfer has ended; its outcome. A transfer never started is well.
  Status wait(const Transfer& transfer);

 private:
  static void on_done(IoRequest& request, Status status);
  void finish(Transfer& transfer, Status status);
  void record(const Transfer& transfer);

  Io& io_;
  Trace* trace_;
  Trace::Track read_track_{}, write_track_{};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t under_way_ = 0;
};

}  // namespace spillway
