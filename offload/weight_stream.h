// Streams slabs from a file through a ring of memory, sweep after sweep in the same order: while
// one group is in use, the next ones are being read, across the end of a sweep too (FlexGen,
// section 4.1, prefetches one layer; this stream as many as the ring holds).
//
// Owned by the weight store. Thread rule: the engine thread; reads are started there and, as
// earlier ones complete, on threads of the Io.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "offload/io/file.h"
#include "offload/io/staging_ring.h"
#include "offload/io/transfer.h"

namespace spillway {

struct StreamedSlab {
  uint32_t slab = 0;  // Its number in the model file, for messages
  uint32_t group = 0;
  uint64_t offset = 0, bytes = 0;
  uint64_t checksum = 0, seed = 0;

  // Reads that together fill its memory, of files that outlive the stream, each to byte `at`.
  // Empty: its bytes lie at `offset` of the stream's file.
  struct Read {
    const File* file = nullptr;
    uint64_t offset = 0, bytes = 0, at = 0;
  };
  std::vector<Read> reads = {};
};

// Makes slab `slab` of what was read into its memory; `compare`: compares the result, as a checksum
// of what is read as it is would be. Called on a thread of the Io. After an error the slab's last
// read is done once more.
using MakeSlab = std::function<Status(uint32_t slab, std::span<std::byte> memory, bool compare)>;

// The reads of a slab that are compared with its checksum. A gigabyte takes a core 36 ms (Zen 4), 5
// % of two cores that compute while 3 GB/s come from the disk; comparing an eighth instead gained 0
// to 4 % (docs/benchmarks/README.md).
enum class VerifyReads : uint8_t {
  kEvery,
  kSample,  // The first, every eighth, and those that arrive while the engine waits anyway
  kFirst,
};

class WeightStream {
 public:
  // `slabs`: at least one, by group in the order of use. `ring` has at least
  // WeightPlacement::ring_bytes_min() bytes. With `prefetch` the stream reads ahead from now on,
  // else only the group that acquire() waits for. After a slab that does not match its checksum the
  // next read of every slab is compared, whatever `verify` says. `make`: null where slabs are read
  // as they are. The queue must outlive the stream.
  WeightStream(TransferQueue& queue, File file, std::vector<StreamedSlab> slabs, Buffer ring,
               bool prefetch, VerifyReads verify = VerifyReads::kEvery, MakeSlab make = {});
  ~WeightStream();  // Waits for the reads under way.

  const std::vector<StreamedSlab>& slabs() const { return slabs_; }

  // Waits until the group's slabs are in memory: data(i) for each i in [first, last) of them.
  // Groups are acquired in order, one at a time, and again from the first after the last. After an
  // error (kIoError, kCorruption; names file and slab) call restart().
  struct Range {
    size_t first = 0, last = 0;
  };
  Result<Range> acquire(uint32_t group);
  const std::byte* data(size_t index) const { return data_[index]; }

  // The indices of the group's slabs. there(): whether a slab of a group still to be acquired has
  // been read ahead without error; its data() is then valid until the group has been released.
  Range range_of(uint32_t group) const;
  bool there(size_t index);

  // Frees the group's memory for other groups.
  void release(uint32_t group);

  // Drops all groups; the next acquire() is of the first group. Blocks until reads are over.
  void restart();

 private:
  void pump();               // REQUIRES: the lock is held.
  void start(size_t index);  // Likewise
  void arrived(size_t index);
  Status wait(size_t index);
  Status read_again(size_t index);
  static Status verify(const Transfer& transfer);
  static Status make_slab(const Transfer& transfer);
  bool skips(size_t index);
  void list_transfers();
  std::span<Transfer> transfers_of(size_t index);

  TransferQueue& queue_;
  const File file_;
  const std::vector<StreamedSlab> slabs_;
  const Buffer buffer_;
  const bool prefetch_;
  const VerifyReads verify_;
  const MakeSlab make_;
  std::vector<std::byte*> data_;        // By index into slabs_
  std::vector<Transfer> transfers_;     // Slab by slab, in the order of their reads
  std::vector<size_t> first_transfer_;  // By index into slabs_, and the number of all
  std::vector<uint64_t> transfer_at_;   // By transfer: its place in the slab's memory

  // A slab's reads. A slab of one read has callbacks one at a time; those of several count down.
  struct Reads {
    uint64_t count = 0;
    uint64_t verified_in = 0;         // The epoch in which a read last matched
    std::atomic<uint32_t> unread{0};  // Transfers of this time whose bytes are not there yet
    uint64_t ended = 0;               // Transfers of all times; under the lock
  };
  std::vector<Reads> reads_;
  std::atomic<uint64_t> epoch_{1};  // Counts mismatches
  std::atomic<bool> waiting_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  StagingRing ring_;
  // Positions on the endless line of slabs; slab i is at i, i + n, i + 2 n, ...
  uint64_t issued_ = 0;    // Reads started
  uint64_t wanted_ = 0;    // Reads needed now
  uint64_t released_ = 0;  // Slabs whose memory is free again
  uint64_t reading_bytes_ = 0;
  bool paused_ = false;
};

}  // namespace spillway
