#include "offload/weight_stream.h"

#include <algorithm>
#include <set>
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
                           Buffer ring, bool prefetch, VerifyReads verify, MakeSlab make)
    : queue_(queue),
      file_(std::move(file)),
      slabs_(std::move(slabs)),
      buffer_(std::move(ring)),
      prefetch_(prefetch),
      verify_(verify),
      make_(std::move(make)),
      data_(slabs_.size()),
      reads_(slabs_.size()),
      ring_({buffer_.data(), buffer_.bytes()}) {
  SPILLWAY_CHECK(!slabs_.empty());
  queue_.io().use_memory({buffer_.data(), buffer_.bytes()});
  list_transfers();
  const std::lock_guard lock(mutex_);
  pump();
}

// The transfers are set only once, except for the address: callbacks read these fields while other
// reads are started.
void WeightStream::list_transfers() {
  std::set<const File*> files;
  for (size_t i = 0; i < slabs_.size(); ++i) {
    std::vector<StreamedSlab::Read> reads = slabs_[i].reads;
    if (reads.empty()) reads.push_back({&file_, slabs_[i].offset, slabs_[i].bytes, 0});
    first_transfer_.push_back(transfers_.size());
    for (const StreamedSlab::Read& read : reads) {
      if (files.insert(read.file).second) queue_.io().use_file(*read.file);
      Transfer& transfer = transfers_.emplace_back();
      transfer.kind = IoRequest::Kind::kRead;
      transfer.file = read.file;
      transfer.offset = read.offset;
      transfer.bytes = read.bytes;
      transfer.user = this;
      transfer.index = i;
      transfer.verify = make_ ? &WeightStream::make_slab : &WeightStream::verify;
      transfer.arrived = [](Transfer& t) { static_cast<WeightStream*>(t.user)->arrived(t.index); };
      transfer_at_.push_back(read.at);
    }
  }
  first_transfer_.push_back(transfers_.size());
}

std::span<Transfer> WeightStream::transfers_of(size_t index) {
  const size_t first = first_transfer_[index];
  return std::span(transfers_).subspan(first, first_transfer_[index + 1] - first);
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

// The slab's last read to arrive makes it.
Status WeightStream::make_slab(const Transfer& transfer) {
  auto& stream = *static_cast<WeightStream*>(transfer.user);
  std::atomic<uint32_t>& unread = stream.reads_[transfer.index].unread;
  if (unread.fetch_sub(1) != 1) return {};
  const StreamedSlab& slab = stream.slabs_[transfer.index];
  const bool compare = !stream.skips(transfer.index);
  const uint64_t epoch = stream.epoch_;
  const Status made = stream.make_(slab.slab, {stream.data_[transfer.index], slab.bytes}, compare);
  if (!made.ok()) {
    unread = 1;
    ++stream.epoch_;
  } else if (compare) {
    stream.reads_[transfer.index].verified_in = epoch;
  }
  return made;
}

// Starts the reads of a slab whose memory is data_[index].
void WeightStream::start(size_t index) {
  const std::span<Transfer> transfers = transfers_of(index);
  reading_bytes_ += slabs_[index].bytes;
  reads_[index].unread = static_cast<uint32_t>(transfers.size());
  for (size_t i = 0; i < transfers.size(); ++i) {
    transfers[i].memory = data_[index] + transfer_at_[first_transfer_[index] + i];
    queue_.start(transfers[i]);
  }
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
    ++issued_;
    start(i);
  }
  changed_.notify_all();
}

void WeightStream::arrived(size_t index) {
  const std::lock_guard lock(mutex_);
  if (++reads_[index].ended % transfers_of(index).size() != 0) return;
  reading_bytes_ -= slabs_[index].bytes;
  pump();
}

// Waits for all reads of a slab; its first error.
Status WeightStream::wait(size_t index) {
  Status status;
  for (const Transfer& transfer : transfers_of(index)) {
    const Status one = queue_.wait(transfer);
    if (status.ok()) status = one;
  }
  return status;
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
    status = wait(i);
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
  if (position >= issued_) return false;
  const std::span<Transfer> transfers = transfers_of(index);
  return std::all_of(transfers.begin(), transfers.end(), [&](const Transfer& transfer) {
    return queue_.done(transfer) && queue_.wait(transfer).ok();
  });
}

Status WeightStream::read_again(size_t index) {
  {
    const std::lock_guard lock(mutex_);
    start(index);
  }
  return wait(index);
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
