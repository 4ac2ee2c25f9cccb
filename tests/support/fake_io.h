// An Io for tests: requests move in small pieces, in a random order that the seed decides, on
// threads of its own, and go wrong where a test says so. The bytes are those of real files
// (memory_file() makes one without a disk).
//
// A read's target holds junk until its callback runs, so that whoever looks too early sees it.
// Thread rule: that of Io; the other methods from any thread, also while requests are in flight.
#pragma once

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "offload/io/file.h"
#include "offload/io/io.h"
#include "offload/io/io_queue.h"

namespace spillway::test {

// What goes wrong, with which requests: those of `kind` that touch a file, or a part of a striped
// one, whose path contains `path_part` in [begin, end) of the request's offsets, less the first
// `skip` of them, and `count` at most.
struct IoFault {
  enum class Effect : uint8_t {
    kError,    // Fails with `error` after some or none of its bytes.
    kFlipBit,  // One bit differs: in memory after a read, on disk after a write.
    kSlow,     // Takes `seconds` longer. Others overtake it.
  };

  Effect effect = Effect::kError;
  IoRequest::Kind kind = IoRequest::Kind::kRead;
  std::string path_part = {};
  uint64_t begin = 0, end = std::numeric_limits<uint64_t>::max();
  uint64_t skip = 0, count = std::numeric_limits<uint64_t>::max();
  int error = EIO;
  double seconds = 0.01;
};

struct FakeIoOptions {
  uint64_t seed = 1;
  int depth = 16;             // Requests among which the next piece is drawn
  int threads = 1;            // Of callbacks
  bool aligned_only = false;  // As O_DIRECT: EINVAL for what is not a multiple of kIoAlignment
};

class FakeIo final : public Io {
 public:
  explicit FakeIo(const FakeIoOptions& options);
  ~FakeIo() override;

  std::string_view name() const override { return "fake"; }
  void use_memory(std::span<std::byte>) override {}
  void use_file(const File&) override {}
  void submit(IoRequest& request) override;

  // Faults meet requests in the order of submission; the first that matches takes the request.
  void add_fault(const IoFault& fault);
  void clear_faults();

  // While held, requests pile up and none moves.
  void hold();
  void release();

  // Of all requests so far, well or badly ended
  uint64_t reads() const;
  uint64_t writes() const;
  uint64_t in_flight() const;

 private:
  struct Pending {
    IoPart part;                   // All of the request
    int error = 0;                 // Comes when `error_after` bytes have moved.
    const File* failed = nullptr;  // What it is of
    size_t error_after = 0;
    bool flip_bit = false;
    double not_before = 0;  // steady_seconds()
  };

  Pending judge(IoRequest& request);
  void work();
  void step(std::unique_lock<std::mutex>& lock, Pending pending);
  void flip_bit(const IoRequest& request);

  const FakeIoOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::vector<IoFault> faults_;   // With what is left of their skip and count
  std::vector<Pending> pending_;  // Less those that a thread moves now
  bool held_ = false, stopping_ = false;
  uint64_t reads_ = 0, writes_ = 0, in_flight_ = 0;
  std::vector<std::thread> threads_;
};

// A file of `bytes` zeros that lives in memory and is gone when closed.
File memory_file(uint64_t bytes);

}  // namespace spillway::test
