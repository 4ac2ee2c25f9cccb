#include "offload/spill_stager.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/clock.h"
#include "offload/model_file.h"

namespace spillway {

namespace {

// Uses in the ring at once, whatever their size.
constexpr size_t kUnitsMax = 1024;

// Two objects never hash alike because their bytes do: the place is part of the checksum.
uint64_t piece_checksum(const SpilledObject& object, const std::byte* memory, uint64_t piece) {
  return slab_checksum({memory + piece * object.piece_bytes, object.piece_bytes},
                       object.offset + piece);
}

}  // namespace

SpillStager::SpillStager(TransferQueue& queue, const File& file, Buffer memory, bool overlap)
    : queue_(queue),
      file_(file),
      buffer_(std::move(memory)),
      overlap_(overlap),
      ring_({buffer_.data(), buffer_.bytes()}),
      units_(kUnitsMax) {
  queue_.io().use_memory({buffer_.data(), buffer_.bytes()});
  queue_.io().use_file(file_);
}

Status SpillStager::verify(const Transfer& transfer) {
  const auto& unit = *static_cast<const Unit*>(transfer.user);
  const SpilledObject& object = *unit.use.object;
  for (uint64_t piece = 0; piece < unit.use.read_bytes / object.piece_bytes; ++piece) {
    if (piece_checksum(object, unit.memory, piece) == object.checksums[piece]) continue;
    return corruption(transfer.file->path() + ": " + std::to_string(object.piece_bytes) +
                      " bytes at " + std::to_string(object.offset + piece * object.piece_bytes) +
                      " came back different from how they were written");
  }
  return {};
}

void SpillStager::begin(std::span<const SpillUse> uses) {
  SPILLWAY_CHECK(next_ - base_ == uses_.size());
  uses_ = uses;
  base_ = next_;
  if (overlap_) pump(next_);
}

// Gives back the memory of the oldest uses whose bytes are home.
void SpillStager::retire_written() {
  while (front_ < next_ && unit(front_).state == State::kWriting &&
         queue_.done(unit(front_).write)) {
    const Unit& oldest = unit(front_);
    const Status written = queue_.wait(oldest.write);
    if (!written.ok() && oldest.use.object->failed.ok()) oldest.use.object->failed = written;
    ring_.give_back();
    ++front_;
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

// Starts what there is room for; without overlap, no further than use `wanted` of the line.
void SpillStager::pump(uint64_t wanted) {
  retire_written();
  while (next_ - base_ < uses_.size() && next_ - front_ < units_.size() &&
         (overlap_ || next_ <= wanted)) {
    const SpillUse& use = uses_[next_ - base_];
    // What is still being written must be home before it is read again.
    if (use.object->last_unit > front_) return;
    std::byte* memory = ring_.take(use.bytes);
    if (memory == nullptr) return;
    Unit& fresh = unit(next_);
    fresh.use = use;
    fresh.memory = memory;
    use.object->last_unit = ++next_;
    start_read(fresh);
  }
}

bool SpillStager::ready(size_t use) {
  if (!overlap_) return false;
  const uint64_t number = base_ + use;
  pump(number);
  return number < next_ && queue_.done(unit(number).read);
}

Result<std::byte*> SpillStager::wait(size_t use) {
  const uint64_t number = base_ + use;
  SPILLWAY_CHECK(use < uses_.size());
  pump(number);
  const double start = number >= next_ ? steady_seconds() : 0;
  while (number >= next_) {
    // No room: the oldest use is on its way home, since the caller has finished it.
    SPILLWAY_CHECK(front_ < next_ && unit(front_).state == State::kWriting);
    (void)queue_.wait(unit(front_).write).ok();
    pump(number);
  }
  if (start > 0) room_wait_seconds_ += steady_seconds() - start;
  Unit& wanted = unit(number);
  Status status = queue_.wait(wanted.read);
  if (status.ok()) status = wanted.use.object->failed;
  wanted.state = State::kInUse;
  if (status.ok()) return wanted.memory;
  wanted.use.object->failed = status;
  return status;
}

void SpillStager::finish(size_t use, uint64_t dirty_from, uint64_t dirty_to) {
  Unit& done = unit(base_ + use);
  SPILLWAY_CHECK(done.state == State::kInUse && dirty_to <= done.use.bytes);
  done.state = State::kWriting;
  done.write.status = {};
  if (dirty_from < dirty_to) {
    SpilledObject& object = *done.use.object;
    const uint64_t last = divide_up(dirty_to, object.piece_bytes);
    if (object.checksums.size() < last) object.checksums.resize(last);
    for (uint64_t piece = dirty_from / object.piece_bytes; piece < last; ++piece) {
      object.checksums[piece] = piece_checksum(object, done.memory, piece);
    }
    // Whole pieces, and whole sectors around them, which hold what was read before.
    const uint64_t from =
        dirty_from / object.piece_bytes * object.piece_bytes / kIoAlignment * kIoAlignment;
    const uint64_t to = round_up(last * object.piece_bytes, kIoAlignment);
    done.write.kind = IoRequest::Kind::kWrite;
    done.write.file = &file_;
    done.write.offset = object.offset + from;
    done.write.memory = done.memory + from;
    done.write.bytes = to - from;
    bytes_written_ += done.write.bytes;
    queue_.start(done.write);
    if (!overlap_) (void)queue_.wait(done.write).ok();
  }
  pump(overlap_ ? next_ : 0);
}

void SpillStager::abandon() {
  for (uint64_t i = front_; i < next_; ++i) {
    (void)queue_.wait(unit(i).read).ok();
    if (unit(i).state != State::kWriting) {
      unit(i).write.status = {};
      unit(i).state = State::kWriting;
    }
  }
  uses_ = {};
  flush();
  base_ = next_;
}

void SpillStager::flush() {
  while (front_ < next_ && unit(front_).state == State::kWriting) {
    (void)queue_.wait(unit(front_).write).ok();
    retire_written();
  }
}

}  // namespace spillway
