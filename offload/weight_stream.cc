#include "offload/weight_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "offload/io/checksum.h"
#include "offload/model_file/model_file.h"

namespace spillway {

namespace {

// Bytes of reads under way at once. Half as much again as the Io keeps in the disk's queue, so that
// the queue never runs dry while a slab is verified; no more, since queued reads delay the KV
// cache's, which are needed sooner.
constexpr uint64_t kReadingBytesMax = uint64_t{96} << 20;

constexpr uint64_t kSampleReads = 8;

}  // namespace

WeightStream::WeightStream(TransferQueue& queue, File file, std::vector<StreamedSlab> slabs,
                           Buffer ring, bool prefetch, VerifyReads verify)
    : queue_(queue),
      file_(std::move(file)),
      slabs_(std::move(slabs)),
      buffer_(std::move(ring)),
      prefetch_(prefetch),
      verify_(verify),
      data_(slabs_.size()),
      transfers_(slabs_.size()),
      reads_(slabs_.size()),
      ring_({buffer_.data(), buffer_.bytes()}) {
  SPILLWAY_CHECK(!slabs_.empty());
  queue_.io().use_memory({buffer_.data(), buffer_.bytes()});
  queue_.io().use_file(file_);
  // Set only once, except for the address: callbacks read these fields while other reads are
  // started.
  for (size_t i = 0; i < slabs_.size(); ++i) {
    Transfer& transfer = transfers_[i];
    transfer.kind = IoRequest::Kind::kRead;
    transfer.file = &file_;
    transfer.offset = slabs_[i].offset;
    transfer.bytes = slabs_[i].bytes;
    transfer.user = this;
    transfer.index = i;
    transfer.verify = &WeightStream::verify;
    transfer.arrived = [](Transfer& t) { static_cast<WeightStream*>(t.user)->arrived(t.index); };
  }
  const std::lock_guard lock(mutex_);
  pump();
}

WeightStream::~WeightStream() {
  std::unique_lock lock(mutex_);
  paused_ = true;
  changed_.wait(lock, [&] { return reading_bytes_ == 0; });
}

WeightStream::Range WeightStream::range_of(uint32_t group) const {
  const auto before = [](const StreamedSlab& slab, uint32_t g) { return slab.group < g; };
  const auto first = std::lower_bound(slabs_.begin(), slabs_.end(), group, before);
  const auto last = std::lower_bound(first, slabs_.end(), group + 1, before);
  return {static_cast<size_t>(first - slabs_.begin()), static_cast<size_t>(last - slabs_.begin())};
}

// Whether a read skips verification. Consecutive slabs take turns at being every eighth.
bool WeightStream::skips(size_t index) {
  Reads& reads = reads_[index];
  const bool sampled = (reads.count++ + index) % kSampleReads == 0;
  if (verify_ == VerifyReads::kEvery || reads.verified_in != epoch_) return false;
  return verify_ == VerifyReads::kFirst || (!sampled && !waiting_);
}

Status WeightStream::verify(const Transfer& transfer) {
  auto& stream = *static_cast<WeightStream*>(transfer.user);
  if (stream.skips(transfer.index)) return {};
  const StreamedSlab& slab = stream.slabs_[transfer.index];
  const uint64_t epoch = stream.epoch_;
  if (seeded_checksum({transfer.memory, transfer.bytes}, slab.seed) == slab.checksum) {
    stream.reads_[transfer.index].verified_in = epoch;
    return {};
  }
  ++stream.epoch_;
  return corruption(stream.file_.path() + ": slab " + std::to_string(slab.slab) + " (" +
                    std::to_string(slab.bytes) + " bytes at " + std::to_string(slab.offset) +
                    ") does not match its checksum");
}

void WeightStream::pump() {
  const uint64_t count = slabs_.size();
  // A slab is in the ring at most once.
  const uint64_t end = prefetch_ ? released_ + count : wanted_;
  while (!paused_ && issued_ < end && reading_bytes_ < kReadingBytesMax) {
    const size_t i = issued_ % count;
    std::byte* memory = ring_.take(slabs_[i].bytes);
    if (memory == nullptr) break;
    data_[i] = memory;
    transfers_[i].memory = memory;
    reading_bytes_ += slabs_[i].bytes;
    ++issued_;
    queue_.start(transfers_[i]);
  }
  changed_.notify_all();
}

void WeightStream::arrived(size_t index) {
  const std::lock_guard lock(mutex_);
  reading_bytes_ -= slabs_[index].bytes;
  pump();
}

Result<WeightStream::Range> WeightStream::acquire(uint32_t group) {
  const Range range = range_of(group);
  if (range.first == range.last) return range;
  std::unique_lock lock(mutex_);
  // Groups come in order and all earlier ones are released, so the ring holds the whole group.
  SPILLWAY_CHECK(released_ == wanted_ && released_ % slabs_.size() == range.first);
  wanted_ = released_ + (range.last - range.first);
  pump();
  changed_.wait(lock, [&] { return issued_ >= wanted_; });
  lock.unlock();
  waiting_ = true;
  Status status;
  for (size_t i = range.first; i < range.last && status.ok(); ++i) {
    status = queue_.wait(transfers_[i]);
    // A failed read-ahead may have been long ago: reads once more.
    if (!status.ok()) status = read_again(i);
  }
  waiting_ = false;
  if (!status.ok()) return status;
  return range;
}

bool WeightStream::there(size_t index) {
  const std::lock_guard lock(mutex_);
  const uint64_t count = slabs_.size();
  const uint64_t position = released_ + (index + count - released_ % count) % count;
  return position < issued_ && queue_.done(transfers_[index]) &&
         queue_.wait(transfers_[index]).ok();
}

Status WeightStream::read_again(size_t index) {
  {
    const std::lock_guard lock(mutex_);
    reading_bytes_ += slabs_[index].bytes;
    queue_.start(transfers_[index]);
  }
  return queue_.wait(transfers_[index]);
}

void WeightStream::release(uint32_t group) {
  const Range range = range_of(group);
  const std::lock_guard lock(mutex_);
  SPILLWAY_CHECK(range.first == range.last || released_ % slabs_.size() == range.first);
  for (size_t i = range.first; i < range.last; ++i) ring_.give_back();
  released_ += range.last - range.first;
  SPILLWAY_CHECK(released_ <= wanted_);
  pump();
}

void WeightStream::restart() {
  std::unique_lock lock(mutex_);
  paused_ = true;
  changed_.wait(lock, [&] { return reading_bytes_ == 0; });
  ring_.clear();
  issued_ = wanted_ = released_ = 0;
  paused_ = false;
  pump();
}

}  // namespace spillway
