// Asynchronous reads and writes of files: io_uring.cc, io_threads.cc (where io_uring is forbidden),
// and a seeded, fault-injecting one in tests/support.
//
// A request is a full transfer or one error: short transfers are continued inside, and every errno
// surfaces once, in the Status of the request it belongs to. Completion is a callback on a thread
// of the backend; several may run at once, for different requests, in any order.
//
// Thread rule: submit() from any thread, also from inside a callback. Memory and files must live
// until the callback has run. Direct I/O (O_DIRECT files) needs offset, address and bytes to be
// multiples of kIoAlignment; the caller sees to that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/base/status.h"

namespace spillway {

constexpr size_t kIoAlignment = 4096;

class File;  // offload/io/file.h

struct IoRequest {
  enum class Kind : uint8_t { kRead, kWrite };
  // May submit again, also the same request. Must not block.
  using Done = void (*)(IoRequest& request, Status status);

  Kind kind = Kind::kRead;
  // Its name stands in error messages; of a striped one, that of the part which failed.
  const File* file = nullptr;
  uint64_t offset = 0;
  std::byte* memory = nullptr;
  size_t bytes = 0;  // At least 1
  Done done = nullptr;
  void* owner = nullptr;  // For `done`; the backend ignores it.

  // Used by the backend while the request is in flight: requests are intrusive, so no call
  // allocates.
  IoRequest* next = nullptr;
  size_t submitted_bytes = 0, completed_bytes = 0;
  uint32_t parts_in_flight = 0;
  int error = 0;
  const File* failed = nullptr;  // The file that `error` is of: `file`, or a part of it
};

// The defaults are parts of one huge page, and 64 MiB of them or more in flight: while two threads
// compute on the same two cores, this read 3.9 GB/s where 32 MiB in parts of 1 MiB read 3.1
// (medians of 6, Zen 3, virtio disk), because the disk does not run dry before the io thread gets
// its turn; more in flight gained nothing. On idle cores all are alike (4.0 to 4.4 GB/s). A
// sequence's cache is read in smaller pieces, hence the depth: runs bound by such reads waited 7.7
// s for them with 128 and 10 to 14 s with 32 (two of each, Zen 4). Memory in huge pages matters
// more than all of these: with small ones the same disk reads about half, at ten times the
// processor time.
struct IoOptions {
  int depth = 128;                          // System calls in flight at once
  size_t part_bytes_max = size_t{2} << 20;  // Larger requests are split into parts.
  int threads = 8;                          // Threads of io_threads.cc
};

class Io {
 public:
  virtual ~Io() = default;  // Waits for requests in flight; REQUIRES: no more submits.

  virtual std::string_view name() const = 0;  // "io_uring", "threads"

  // Hints that transfers submitted later will use this memory or file again and again, so that the
  // kernel looks them up once. Every page of the memory is pinned, and later requests wait for that
  // (1 to 3 s per GiB that was not faulted in before). A failure to do so is no error. Nothing may
  // be submitted once either is gone: a file that is closed and another that gets its descriptor
  // would be mistaken for each other. Do not block.
  virtual void use_memory(std::span<std::byte> memory) = 0;
  virtual void use_file(const File& file) = 0;

  // Queues the request; never blocks on the disk. Requests start in the order of submission; more
  // than `depth` wait inside.
  virtual void submit(IoRequest& request) = 0;
};

// kNotFound where the kernel (or its policy) has no io_uring.
Result<std::unique_ptr<Io>> open_uring_io(const IoOptions& options);
Result<std::unique_ptr<Io>> open_threads_io(const IoOptions& options);

// io_uring, or threads where that is forbidden.
Result<std::unique_ptr<Io>> open_io(const IoOptions& options);

}  // namespace spillway
