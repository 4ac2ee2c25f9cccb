// Reads objects that live in a scratch file (a sequence's keys and values of one layer, a
// micro-batch's activations) into memory in the order of their use, ahead of it as far as a ring of
// memory allows, and writes changes back after the use. A small change is copied out first, so that
// the ring space of the whole object is freed before the write ends: a write that queues behind
// reads of hundreds of MiB takes as long as they do.
//
// Reads are verified against checksums kept in memory. An error (I/O, corruption) belongs to its
// object and stays with it; other objects are unaffected.
//
// Thread rule: the engine thread; reads are started there and, as writes end and free ring space,
// on threads of the Io, so that the disk has work while the engine computes. Objects must live
// until forget() after their last use.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "offload/io/byte_range.h"
#include "offload/io/file.h"
#include "offload/io/staging_ring.h"
#include "offload/io/transfer.h"

namespace spillway {

// A fixed range of the scratch file, in pieces with a checksum each: optionally a first piece of
// another size, then equal pieces.
struct SpilledObject {
  uint64_t offset = 0;      // Into the file, a multiple of kIoAlignment
  uint64_t head_bytes = 0;  // Size of the first piece, a multiple of kIoAlignment; 0: as the others
  uint64_t piece_bytes = 0;
  std::vector<uint64_t> checksums;  // By piece; of pieces written so far
  const void* owner = nullptr;      // Whose object it is, for forget()

  // The offset of a piece in the object, and the number of pieces that the first `bytes` reach
  // into.
  uint64_t piece_begin(uint64_t piece) const {
    if (head_bytes == 0) return piece * piece_bytes;
    return piece == 0 ? 0 : head_bytes + (piece - 1) * piece_bytes;
  }
  uint64_t pieces_in(uint64_t bytes) const {
    if (head_bytes == 0 || bytes == 0) return (bytes + piece_bytes - 1) / piece_bytes;
    return bytes <= head_bytes ? 1 : 1 + (bytes - head_bytes + piece_bytes - 1) / piece_bytes;
  }

  // Used by the stager alone.
  uint64_t last_unit = 0;   // The object's latest use, counted from 1
  size_t writing_back = 0;  // Writes of copies under way
  Status failed;
};

// One use of an object: its first `read_bytes` (whole pieces) are read into `bytes` of memory.
struct SpillUse {
  SpilledObject* object = nullptr;
  uint64_t read_bytes = 0;
  uint64_t bytes = 0;
  bool operator==(const SpillUse&) const = default;
};

class SpillStager {
 public:
  // `memory` holds, beside `outbox_bytes` for copies of small changes (0: none is copied; a
  // multiple of kIoAlignment), at least one object's bytes, better several. Without `overlap` the
  // stager reads only in wait(), and waits for its writes. `file` and `queue` must outlive the
  // stager.
  SpillStager(TransferQueue& queue, const File& file, Buffer memory, bool overlap,
              uint64_t outbox_bytes = 0);
  ~SpillStager() { abandon(); }

  // Sets the uses of the next sweep, in order; the last `speculative` of them are the probable
  // first uses of the sweep after that, prefetched so that the disk has work while this one ends.
  // The span must stay valid until the last use is finished or, with speculative uses, until the
  // next call has returned. Speculative uses that have been read and prove right are not read
  // again; if one proves wrong, all are dropped. REQUIRES: every earlier use that was not
  // speculative was waited for and finished, or abandon() was called.
  void begin(std::span<const SpillUse> uses, size_t speculative = 0);

  // Whether wait() would return at once.
  bool ready(size_t use);

  // The object's bytes in memory, until finish(). Uses are waited for in order; earlier uses must
  // be finished unless ready() has returned true for this one.
  Result<std::byte*> wait(size_t use);

  // Ends a use and writes its `changes` (ordered, disjoint) back. Uses are finished in order; after
  // an error of wait(), without changes.
  void finish(size_t use, std::span<const ByteRange> changes);

  // Blocks until nothing is under way; drops unfinished and speculative uses.
  void abandon();

  // Blocks until the changes of all finished uses are on disk.
  void flush();

  // Call between sweeps, before the owner's objects are destroyed. Blocks until their changes are
  // on disk and drops their speculative prefetches.
  void forget(const void* owner);

  // Total seconds spent in wait() because the ring was full.
  double room_wait_seconds() const { return room_wait_seconds_; }
  uint64_t bytes_read() const {
    const std::lock_guard lock(mutex_);
    return bytes_read_;
  }
  uint64_t bytes_written() const { return bytes_written_; }

 private:
  enum class State : uint8_t { kReading, kInUse, kWriting };
  struct Unit {
    SpillUse use;
    std::byte* memory = nullptr;
    State state = State::kReading;
    Transfer read;
    std::vector<Transfer> writes;
    size_t writes_left = 0;  // Writes under way
  };
  // A change being written from a copy in the outbox.
  struct WriteBack {
    SpilledObject* object = nullptr;
    Transfer write;
    bool written = false;
  };

  Unit& unit(uint64_t number) { return units_[number % units_.size()]; }
  WriteBack& write_back(uint64_t number) { return write_backs_[number % write_backs_.size()]; }
  static Status verify(const Transfer& transfer);
  static void written(Transfer& transfer);
  static void copy_written(Transfer& transfer);
  WriteBack* copy_out(const Unit& unit, const Transfer& write);
  void prepare_write(const Unit& unit, const ByteRange& change, Transfer* write);
  // REQUIRES for these: the lock is held.
  void retire_written();
  void pump(uint64_t wanted);
  void drop(uint64_t first, std::unique_lock<std::mutex>& lock);
  void start_read(Unit& unit);

  TransferQueue& queue_;
  const File& file_;
  const Buffer buffer_;
  const bool overlap_;
  const uint64_t outbox_bytes_;
  StagingRing ring_;
  // The lock guards the members that follow, and the units; a unit in use is the engine thread's.
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // A unit was written or freed, or a copy written.
  std::optional<StagingRing> outbox_;
  // Copies: a window [oldest_write_back_, next_write_back_), like units_
  std::vector<WriteBack> write_backs_;
  uint64_t oldest_write_back_ = 0, next_write_back_ = 0;
  std::vector<Unit> units_;         // A window [front_, next_) of the endless sequence of uses
  std::span<const SpillUse> uses_;  // This sweep's, then speculative; use i is unit base_ + i
  size_t sure_ = 0;                 // Number of uses that are not speculative
  uint64_t base_ = 0, front_ = 0, next_ = 0;
  uint64_t bytes_read_ = 0;
  uint64_t bytes_written_ = 0;  // Engine thread only
  double room_wait_seconds_ = 0;
};

}  // namespace spillway
