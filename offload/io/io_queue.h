// Shared by the backends of io.h: the queue of waiting requests, cut into parts of at most
// part_bytes_max in one file, and the error message of a request.
//
// Thread rule: one thread at a time; the backend's lock or its only thread sees to that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "offload/io/io.h"

namespace spillway {

// The share of a request that one chain of system calls moves. A backend advances `moved_bytes`
// until it is `bytes`. Parts of one request may be on several threads, so no backend changes the
// request.
struct IoPart {
  IoRequest* request = nullptr;
  const File* file = nullptr;  // The request's, or a part of it
  uint64_t offset = 0;         // In `file`
  std::byte* memory = nullptr;
  size_t bytes = 0;
  size_t moved_bytes = 0;
  int error = 0;
  int retries = 0;  // Calls that moved nothing since the last that moved bytes

  // Accounts for a system call's result (the bytes it moved or a negative errno). kError leaves the
  // reason in `error`.
  enum class Next : uint8_t { kDone, kContinue, kError };
  Next advance(int64_t result);
};

class IoQueue {
 public:
  explicit IoQueue(size_t part_bytes_max) : part_bytes_max_(part_bytes_max) {}

  bool empty() const { return head_ == nullptr; }

  // Appends the request. REQUIRES: file, memory and done are set, bytes > 0.
  void push(IoRequest& request);

  // The next part of the oldest request that has one; nothing when empty().
  std::optional<IoPart> take();

  // Ends a part. True when it was the last of its request: the caller owns the request again and
  // calls its done(). A request with an error starts no further parts.
  bool finish(const IoPart& part);

 private:
  void pop();

  size_t part_bytes_max_;
  IoRequest* head_ = nullptr;  // Linked by IoRequest::next; only the head can be partly under way.
  IoRequest* tail_ = nullptr;
};

// Runs done() with the outcome: OK or the one error, which names file, offset, bytes and reason.
void deliver(IoRequest& request);

// kInvalidArgument unless depth and threads are in 1..4096, and part_bytes_max is a multiple of
// kIoAlignment up to 1 GiB.
Status check_io_options(const IoOptions& options);

}  // namespace spillway
