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
  const uint64_t begin = object.piece_begin(piece);
  return slab_checksum({memory + begin, object.piece_begin(piece + 1) - begin},
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

void SpillStager::begin(std::span<const SpillUse> uses) {
  SPILLWAY_CHECK(next_ - base_ == uses_.size());
  uses_ = uses;
  base_ = next_;
  if (overlap_) pump(next_);
}

bool SpillStager::written(const Unit& unit) const {
  return std::all_of(unit.writes.begin(),
                     unit.writes.begin() + static_cast<std::ptrdiff_t>(unit.changes),
                     [&](const Transfer& write) { return queue_.done(write); });
}

// Blocks; the first error.
Status SpillStager::wait_written(const Unit& unit) {
  Status status;
  for (size_t i = 0; i < unit.changes; ++i) {
    const Status written = queue_.wait(unit.writes[i]);
    if (status.ok()) status = written;
  }
  return status;
}

// Gives back the memory of the oldest uses whose bytes are home.
void SpillStager::retire_written() {
  while (front_ < next_ && unit(front_).state == State::kWriting && written(unit(front_))) {
    const Unit& oldest = unit(front_);
    const Status written = wait_written(oldest);
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
    (void)wait_written(unit(front_)).ok();
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

void SpillStager::write_back(Unit& unit, const ByteRange& change) {
  SPILLWAY_CHECK(change.from < change.to && change.to <= unit.use.bytes);
  SpilledObject& object = *unit.use.object;
  const uint64_t first = object.pieces_in(change.from + 1) - 1;
  const uint64_t last = object.pieces_in(change.to);
  if (object.checksums.size() < last) object.checksums.resize(last);
  for (uint64_t piece = first; piece < last; ++piece) {
    object.checksums[piece] = piece_checksum(object, unit.memory, piece);
  }
  // Whole pieces, and whole sectors around them, which hold what was read before.
  const uint64_t from = object.piece_begin(first) / kIoAlignment * kIoAlignment;
  const uint64_t to = round_up(object.piece_begin(last), kIoAlignment);
  Transfer& write = unit.writes[unit.changes++];
  write.status = {};
  write.kind = IoRequest::Kind::kWrite;
  write.file = &file_;
  write.offset = object.offset + from;
  write.memory = unit.memory + from;
  write.bytes = to - from;
  bytes_written_ += write.bytes;
  queue_.start(write);
}

void SpillStager::finish(size_t use, std::span<const ByteRange> changes) {
  Unit& done = unit(base_ + use);
  SPILLWAY_CHECK(done.state == State::kInUse);
  done.state = State::kWriting;
  done.changes = 0;
  // Before any starts: they must not move then.
  if (done.writes.size() < changes.size()) done.writes.resize(changes.size());
  for (const ByteRange& change : changes) write_back(done, change);
  if (!overlap_) (void)wait_written(done).ok();
  pump(overlap_ ? next_ : 0);
}

void SpillStager::abandon() {
  for (uint64_t i = front_; i < next_; ++i) {
    (void)queue_.wait(unit(i).read).ok();
    if (unit(i).state == State::kWriting) continue;
    unit(i).changes = 0;
    unit(i).state = State::kWriting;
  }
  uses_ = {};
  flush();
  base_ = next_;
}

void SpillStager::flush() {
  while (front_ < next_ && unit(front_).state == State::kWriting) {
    (void)wait_written(unit(front_)).ok();
    retire_written();
  }
}

}  // namespace spillway
