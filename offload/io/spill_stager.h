// Brings objects that live in a scratch file (a sequence's keys and values of one layer, a
// micro-batch's activations) into memory in the order in which they will be used, ahead of their
// use as far as a ring of memory allows, and writes back what changed behind the use. A small
// change is copied out first, so that the room of the whole object need not wait for it: a write
// that queues behind reads of hundreds of MiB takes as long as they do.
//
// What is read is verified against checksums kept in memory. An error (I/O, corruption) belongs to
// its object and stays with it; others are not touched.
//
// Thread rule: the engine thread; reads are started there and, as writes end and give their room
// back, on threads of the Io, so that the disk has work while the engine computes. Objects must
// live until forget() after their last use.
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

// A fixed place in the scratch file, in pieces with a checksum each: first one of its own size, if
// there is one, then equal ones.
struct SpilledObject {
  uint64_t offset = 0;      // In the file, a multiple of kIoAlignment
  uint64_t head_bytes = 0;  // Of the first piece, a multiple of kIoAlignment; 0: as the others
  uint64_t piece_bytes = 0;
  std::vector<uint64_t> checksums;  // By piece; of those that were written

  // Where a piece begins, and the pieces that lie in the first `bytes` at least in part.
  uint64_t piece_begin(uint64_t piece) const {
    if (head_bytes == 0) return piece * piece_bytes;
    return piece == 0 ? 0 : head_bytes + (piece - 1) * piece_bytes;
  }
  uint64_t pieces_in(uint64_t bytes) const {
    if (head_bytes == 0 || bytes == 0) return (bytes + piece_bytes - 1) / piece_bytes;
    return bytes <= head_bytes ? 1 : 1 + (bytes - head_bytes + piece_bytes - 1) / piece_bytes;
  }

  // The stager's.
  uint64_t last_unit = 0;  // Its latest use, counted from 1
  size_t leaving = 0;      // Writes of copies, not yet home
  Status failed;
};

// One use of an object: its first `read_bytes` (whole pieces) are needed, `bytes` of memory are.
struct SpillUse {
  SpilledObject* object = nullptr;
  uint64_t read_bytes = 0;
  uint64_t bytes = 0;
  bool operator==(const SpillUse&) const = default;
};

class SpillStager {
 public:
  // `memory` holds, beside `outbox_bytes` for copies of small changes (0: none is copied; a
  // multiple of kIoAlignment), at least one object's bytes, better several. Without `overlap` it
  // reads when it is asked to wait, and waits for what it writes. `file` and `queue` must outlive
  // the stager.
  SpillStager(TransferQueue& queue, const File& file, Buffer memory, bool overlap,
              uint64_t outbox_bytes = 0);
  ~SpillStager() { abandon(); }

  // The uses of the next sweep, in order; the last `guessed` of them are what the sweep after that
  // will probably begin with, so that the disk has work while this one ends. They must stay where
  // they are until the last is finished or, with guesses, until the next call has returned. Guesses
  // that have been read and come true are not read again; if one does not, all are dropped.
  // REQUIRES: every earlier use but guesses was waited for and finished, or abandon() was called.
  void begin(std::span<const SpillUse> uses, size_t guessed = 0);

  // Whether wait() would return at once.
  bool ready(size_t use);

  // The object's bytes in memory, until finish(). Uses are waited for in order; those before must
  // be finished unless ready() has said true for this one.
  Result<std::byte*> wait(size_t use);

  // The bytes of `changes`, in order and apart, go home. Uses are finished in order; after an error
  // of wait(), with nothing changed.
  void finish(size_t use, std::span<const ByteRange> changes);

  // Blocks until nothing is under way; uses not yet finished, and guesses, are forgotten.
  void abandon();

  // Blocks until everything finished is on disk.
  void flush();

  // Between sweeps, before the objects go: what is finished is on disk, and nothing is read that
  // was guessed about them.
  void forget(std::span<const SpilledObject> objects);

  // Spent in wait() because the ring had no room, so far.
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
    size_t writes_left = 0;  // Not yet home
  };
  // A change on its way home from a copy.
  struct WriteBack {
    SpilledObject* object = nullptr;
    Transfer write;
    bool home = false;
  };

  Unit& unit(uint64_t number) { return units_[number % units_.size()]; }
  WriteBack& leaving(uint64_t number) { return write_backs_[number % write_backs_.size()]; }
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
  // A unit in use is the engine thread's; the others, and what follows, are under the lock.
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // A unit was written or given back, or a copy is home.
  std::optional<StagingRing> outbox_;
  std::vector<WriteBack>
      write_backs_;  // A window [left_, leave_next_) of copies, as units_ is of uses
  uint64_t left_ = 0, leave_next_ = 0;
  std::vector<Unit> units_;         // A window [front_, next_) on the endless line of uses
  std::span<const SpillUse> uses_;  // Of this sweep, then guesses; use i is unit base_ + i.
  size_t sure_ = 0;                 // Uses that are no guesses
  uint64_t base_ = 0, front_ = 0, next_ = 0;
  uint64_t bytes_read_ = 0;
  uint64_t bytes_written_ = 0;  // The engine thread's
  double room_wait_seconds_ = 0;
};

}  // namespace spillway
