#include "offload/io/spill_stager.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/clock.h"
#include "offload/io/checksum.h"

namespace spillway {

namespace {

// Most uses in the ring at once, of any size, and most copies being written.
constexpr size_t kUnitsMax = 1024;

// A change is small if it is at most 1 / kSmallShare of the use's bytes, or one piece.
constexpr uint64_t kSmallShare = 4;

// The checksum includes the place, so that equal bytes of two objects have different checksums.
uint64_t piece_checksum(const SpilledObject& object, const std::byte* memory, uint64_t piece) {
  const uint64_t begin = object.piece_begin(piece);
  return seeded_checksum({memory + begin, object.piece_begin(piece + 1) - begin},
                         object.offset + piece);
}

// Whether all pieces to be read were written.
bool has_bytes(const SpillUse& use) {
  return use.object->failed.ok() &&
         use.object->pieces_in(use.read_bytes) <= use.object->checksums.size();
}

}  // namespace

SpillStager::SpillStager(TransferQueue& queue, const File& file, Buffer memory, bool overlap,
                         uint64_t outbox_bytes)
    : queue_(queue),
      file_(file),
      buffer_(std::move(memory)),
      overlap_(overlap),
      outbox_bytes_(overlap ? outbox_bytes : 0),
      ring_({buffer_.data(), buffer_.bytes() - outbox_bytes_}),
      units_(kUnitsMax) {
  if (outbox_bytes_ > 0) {
    outbox_.emplace(std::span(buffer_.data() + ring_.bytes(), outbox_bytes_));
    write_backs_.resize(kUnitsMax);
  }
  queue_.io().use_memory({buffer_.data(), buffer_.bytes()});
  queue_.io().use_file(file_);
}

Status SpillStager::verify(const Transfer& transfer) {
  const auto& unit = *static_cast<const Unit*>(transfer.user);
  const SpilledObject& object = *unit.use.object;
  for (uint64_t piece = 0; piece < object.pieces_in(unit.use.read_bytes); ++piece) {
    if (piece_checksum(object, unit.memory, piece) == object.checksums[piece]) continue;
    const uint64_t begin = object.piece_begin(piece);
    return corruption(transfer.file->path() + ": " +
                      std::to_string(object.piece_begin(piece + 1) - begin) + " bytes at " +
                      std::to_string(object.offset + begin) +
                      " came back different from how they were written");
  }
  return {};
}

void SpillStager::begin(std::span<const SpillUse> uses, size_t speculative) {
  std::unique_lock lock(mutex_);
  const uint64_t begun = base_ + sure_;  // Reads from here on were speculative
  SPILLWAY_CHECK(speculative <= uses.size() && next_ >= begun);
  bool right = next_ - begun <= uses.size() - speculative;
  for (uint64_t i = begun; right && i < next_; ++i) right = unit(i).use == uses[i - begun];
  if (!right) drop(begun, lock);
  base_ = right ? begun : next_;
  uses_ = uses;
  sure_ = uses.size() - speculative;
  if (overlap_) pump(next_);
}

// Drops the units from `first` on and all unstarted uses. Blocks until none of them is being read
// (they may still be written).
void SpillStager::drop(uint64_t first, std::unique_lock<std::mutex>& lock) {
  uses_ = {};  // No more uses are started
  sure_ = 0;
  base_ = next_;
  lock.unlock();
  for (uint64_t i = first; i < next_; ++i) (void)queue_.wait(unit(i).read).ok();
  lock.lock();
  for (uint64_t i = first; i < next_; ++i) {
    if (unit(i).state == State::kWriting) continue;
    unit(i).writes_left = 0;
    unit(i).state = State::kWriting;
  }
  retire_written();
}

// Frees the memory of the oldest uses whose changes are on disk.
void SpillStager::retire_written() {
  while (front_ < next_ && unit(front_).state == State::kWriting && unit(front_).writes_left == 0) {
    ring_.give_back();
    ++front_;
    changed_.notify_all();
  }
}

void SpillStager::start_read(Unit& unit) {
  unit.state = State::kReading;
  unit.read.status = unit.use.object->failed;
  if (unit.use.read_bytes == 0 || !unit.use.object->failed.ok()) return;
  unit.read.kind = IoRequest::Kind::kRead;
  unit.read.file = &file_;
  unit.read.offset = unit.use.object->offset;
  unit.read.memory = unit.memory;
  unit.read.bytes = round_up(unit.use.read_bytes, kIoAlignment);
  unit.read.user = &unit;
  unit.read.verify = &SpillStager::verify;
  bytes_read_ += unit.read.bytes;
  queue_.start(unit.read);
}

// Starts reads while the ring has space; without overlap, no further than unit `wanted`.
void SpillStager::pump(uint64_t wanted) {
  retire_written();
  while (next_ - base_ < uses_.size() && next_ - front_ < units_.size() &&
         (overlap_ || next_ <= wanted)) {
    const SpillUse& use = uses_[next_ - base_];
    // An object's writes must be on disk before it is read again.
    if (use.object->last_unit > front_ || use.object->writing_back > 0) return;
    // A speculative use of a failed object has nothing to read.
    if (next_ - base_ >= sure_ && !has_bytes(use)) return;
    std::byte* memory = ring_.take(use.bytes);
    if (memory == nullptr) return;
    Unit& fresh = unit(next_);
    fresh.use = use;
    fresh.memory = memory;
    use.object->last_unit = ++next_;
    start_read(fresh);
  }
}

// On a thread of the Io. The transfer may be used again as soon as the lock is free.
void SpillStager::written(Transfer& transfer) {
  auto& stager = *static_cast<SpillStager*>(transfer.user);
  const std::lock_guard lock(stager.mutex_);
  Unit& unit = stager.unit(transfer.index);
  Status& failed = unit.use.object->failed;
  if (failed.ok()) failed = transfer.status;
  if (--unit.writes_left > 0) return;
  stager.changed_.notify_all();
  // Without overlap reads wait until they are asked for.
  stager.pump(0);
}

// As written(), for a copy in the outbox.
void SpillStager::copy_written(Transfer& transfer) {
  auto& stager = *static_cast<SpillStager*>(transfer.user);
  const std::lock_guard lock(stager.mutex_);
  WriteBack& copy = stager.write_back(transfer.index);
  Status& failed = copy.object->failed;
  if (failed.ok()) failed = transfer.status;
  --copy.object->writing_back;
  copy.written = true;
  for (uint64_t& oldest = stager.oldest_write_back_;
       oldest < stager.next_write_back_ && stager.write_back(oldest).written; ++oldest) {
    stager.outbox_->give_back();
  }
  stager.changed_.notify_all();
  stager.pump(0);
}

bool SpillStager::ready(size_t use) {
  if (!overlap_) return false;
  const uint64_t number = base_ + use;
  const std::lock_guard lock(mutex_);
  pump(number);
  return number < next_ && queue_.done(unit(number).read);
}

Result<std::byte*> SpillStager::wait(size_t use) {
  std::unique_lock lock(mutex_);
  const uint64_t number = base_ + use;
  SPILLWAY_CHECK(use < sure_);
  pump(number);
  const double start = number >= next_ ? steady_seconds() : 0;
  while (number >= next_) {
    // The ring is full or the object's last write is not done. A write is under way: of the oldest
    // use, which the caller has finished, or of a copy.
    SPILLWAY_CHECK(oldest_write_back_ < next_write_back_ ||
                   (front_ < next_ && unit(front_).state == State::kWriting));
    changed_.wait(lock);
    pump(number);
  }
  if (start > 0) room_wait_seconds_ += steady_seconds() - start;
  Unit& wanted = unit(number);
  lock.unlock();
  Status status = queue_.wait(wanted.read);
  lock.lock();
  if (status.ok()) status = wanted.use.object->failed;
  wanted.state = State::kInUse;
  if (status.ok()) return wanted.memory;
  wanted.use.object->failed = status;
  return status;
}

// Updates the checksums of a change and prepares the transfer that writes it back.
void SpillStager::prepare_write(const Unit& unit, const ByteRange& change, Transfer* write) {
  SPILLWAY_CHECK(change.from < change.to && change.to <= unit.use.bytes);
  SpilledObject& object = *unit.use.object;
  const uint64_t first = object.pieces_in(change.from + 1) - 1;
  const uint64_t last = object.pieces_in(change.to);
  if (object.checksums.size() < last) object.checksums.resize(last);
  for (uint64_t piece = first; piece < last; ++piece) {
    object.checksums[piece] = piece_checksum(object, unit.memory, piece);
  }
  // Whole pieces, and whole sectors around them, whose other bytes are as read before.
  const uint64_t from = object.piece_begin(first) / kIoAlignment * kIoAlignment;
  const uint64_t to = round_up(object.piece_begin(last), kIoAlignment);
  write->status = {};
  write->kind = IoRequest::Kind::kWrite;
  write->file = &file_;
  write->offset = object.offset + from;
  write->memory = unit.memory + from;
  write->bytes = to - from;
  write->arrived = &SpillStager::written;
  write->user = this;
  bytes_written_ += write->bytes;
}

// A copy of the bytes of `write`, ready to start, if it is small and the outbox has space; else
// null.
SpillStager::WriteBack* SpillStager::copy_out(const Unit& unit, const Transfer& write) {
  // A piece that changes in an object of few pieces is a decode step's, too.
  const uint64_t piece = round_up(unit.use.object->piece_bytes, kIoAlignment) + kIoAlignment;
  const uint64_t small = std::max(unit.use.bytes / kSmallShare, piece);
  if (!outbox_ || write.bytes > small) return nullptr;
  WriteBack* copy;
  std::byte* memory;
  {
    const std::lock_guard lock(mutex_);
    if (next_write_back_ - oldest_write_back_ == write_backs_.size()) return nullptr;
    memory = outbox_->take(write.bytes);
    if (memory == nullptr) return nullptr;
    copy = &write_back(next_write_back_);
    *copy = {unit.use.object, write};
    copy->write.index = next_write_back_++;
    ++unit.use.object->writing_back;
  }
  std::memcpy(memory, write.memory, write.bytes);
  copy->write.memory = memory;
  copy->write.arrived = &SpillStager::copy_written;
  return copy;
}

void SpillStager::finish(size_t use, std::span<const ByteRange> changes) {
  const uint64_t number = base_ + use;
  Unit& done = unit(number);
  SPILLWAY_CHECK(done.state == State::kInUse);
  // Resized before any write starts: transfers under way must not move.
  if (done.writes.size() < changes.size()) done.writes.resize(changes.size());
  size_t in_place = 0;
  for (const ByteRange& change : changes) {
    Transfer& write = done.writes[in_place];
    prepare_write(done, change, &write);
    write.index = number;
    if (WriteBack* copy = copy_out(done, write)) {
      queue_.start(copy->write);
    } else {
      ++in_place;
    }
  }
  std::unique_lock lock(mutex_);
  done.state = State::kWriting;
  done.writes_left = in_place;
  for (size_t i = 0; i < in_place; ++i) queue_.start(done.writes[i]);
  if (!overlap_) changed_.wait(lock, [&] { return done.writes_left == 0; });
  pump(overlap_ ? next_ : 0);
}

void SpillStager::abandon() {
  std::unique_lock lock(mutex_);
  drop(front_, lock);
  lock.unlock();
  flush();
}

void SpillStager::forget(const void* owner) {
  {
    std::unique_lock lock(mutex_);
    const auto prefetches = uses_.subspan(sure_);
    const bool prefetched =
        std::any_of(prefetches.begin(), prefetches.end(),
                    [&](const SpillUse& use) { return use.object->owner == owner; });
    if (prefetched) drop(base_ + sure_, lock);
  }
  flush();
}

void SpillStager::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    retire_written();
    return oldest_write_back_ == next_write_back_ &&
           (front_ == next_ || unit(front_).state != State::kWriting);
  });
}

}  // namespace spillway
