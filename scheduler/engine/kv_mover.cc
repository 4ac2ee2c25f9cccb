#include "scheduler/engine/kv_mover.h"

#include <algorithm>
#include <span>

#include "kernels/base/check.h"

namespace spillway {

namespace {

// Bytes that go through host memory at a time: as many as a run on disk has at most.
constexpr uint64_t kMovedBytes = uint64_t{2} << 20;

}  // namespace

Status KvMover::read(KvSequence& sequence, int64_t layer, int64_t positions,
                     std::vector<std::byte>* state, std::vector<std::byte>* rows) {
  std::vector<std::byte> all;  // As if it lay in one piece
  SPILLWAY_RETURN_IF_ERROR(
      read_runs(sequence, layer, positions, [&](const std::byte* from, uint64_t n) {
        all.insert(all.end(), from, from + n);
        return Status();
      }));
  const KvSequence::Kind& kind = sequence.kind(layer);
  const uint64_t rows_at = sequence.on_disk(layer) ? kind.disk_state_bytes() : kind.state_bytes;
  state->assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(kind.state_bytes));
  rows->assign(all.begin() + static_cast<ptrdiff_t>(rows_at), all.end());
  return {};
}

// Calls take(bytes, their number) for so many bytes of device or host memory.
Status KvMover::read_memory(const std::byte* from, uint64_t bytes, const TakeBytes& take) {
  if (!device_.discrete()) return take(from, bytes);
  piece_.resize(kMovedBytes);
  for (uint64_t at = 0; at < bytes; at += kMovedBytes) {
    const uint64_t some = std::min(kMovedBytes, bytes - at);
    stream_.copy(piece_.data(), from + at, some);
    SPILLWAY_RETURN_IF_ERROR(stream_.record().wait());
    SPILLWAY_RETURN_IF_ERROR(take(piece_.data(), some));
  }
  return {};
}

// Calls take(bytes, their number) for a layer's bytes, as if it lay in one piece, in their order
// and in pieces of host memory, until it returns an error.
Status KvMover::read_runs(KvSequence& sequence, int64_t layer, int64_t positions,
                          const TakeBytes& take) {
  const uint64_t block_bytes = cache_.layout().block_bytes();
  const auto blocks = static_cast<size_t>(std::min(sequence.shared_blocks, kv_blocks(positions)));
  const std::vector<std::byte*>& shared = sequence.place(layer).table;
  for (size_t block = 0, count = 0; block < blocks; block += count) {  // In runs
    for (count = 1; block + count < blocks; ++count) {
      if (shared[block + count] != shared[block] + count * block_bytes) break;
    }
    SPILLWAY_RETURN_IF_ERROR(read_memory(shared[block], count * block_bytes, take));
  }
  std::vector<KvCache::RunPart> parts;
  cache_.find_parts(sequence, layer, positions, 0, &parts);
  if (!sequence.on_disk(layer)) {
    for (size_t run = 0; run < parts.size(); ++run) {
      const std::byte* from = cache_.run_at(sequence, layer, run);
      SPILLWAY_RETURN_IF_ERROR(read_memory(from, parts[run].filled, take));
    }
    return {};
  }
  std::vector<SpillUse> uses;
  cache_.add_uses(sequence, layer, positions, 0, &uses);
  SpillStager& stager = stager_of(sequence);
  stager.begin(uses);
  Status status;
  for (size_t run = 0; run < uses.size(); ++run) {
    const Result<std::byte*> memory = stager.wait(run);
    if (status.ok()) status = memory.status();
    if (status.ok()) status = take(memory.value(), parts[run].filled);
    stager.finish(run, {});
  }
  return status;
}

// Writes a layer's bytes, as if it lay in one piece, as they are handed over.
class KvMover::Writer {
 public:
  // The writer of a layer's first `positions` positions. Both outlive it.
  Writer(KvMover& mover, KvSequence& sequence, int64_t layer, int64_t positions)
      : mover_(mover), sequence_(sequence), layer_(layer) {
    mover.cache_.find_parts(sequence, layer, positions, 0, &parts_);
    if (!sequence.on_disk(layer)) return;
    mover.cache_.add_uses(sequence, layer, positions, 0, &uses_);
    for (SpillUse& use : uses_) use.read_bytes = 0;
    mover.stager_of(sequence).begin(uses_);
  }

  Status write(const std::byte* from, uint64_t bytes) {
    while (bytes > 0) {
      SPILLWAY_CHECK(run_ < parts_.size());
      if (at_ == 0) SPILLWAY_RETURN_IF_ERROR(open());
      const uint64_t some = std::min(bytes, parts_[run_].filled - at_);
      if (uses_.empty()) {
        mover_.stream_.copy(memory_ + at_, from, some);
        SPILLWAY_RETURN_IF_ERROR(mover_.stream_.record().wait());  // `from` is the caller's.
      } else {
        std::copy_n(from, some, memory_ + at_);
      }
      from += some;
      bytes -= some;
      at_ += some;
      if (at_ == parts_[run_].filled) close(true);
    }
    return {};
  }

  // Blocks until all is written. After an error of write() or its caller, too.
  Status end() {
    if (uses_.empty()) return {};
    while (run_ < parts_.size()) {
      if (at_ == 0) (void)open().ok();
      close(false);
    }
    mover_.stager_of(sequence_).flush();
    for (const SpillUse& use : uses_) SPILLWAY_RETURN_IF_ERROR(use.object->failed);
    return {};
  }

 private:
  Status open() {
    if (uses_.empty()) {
      memory_ = mover_.cache_.run_at(sequence_, layer_, run_);
      return {};
    }
    SPILLWAY_ASSIGN_OR_RETURN(memory_, mover_.stager_of(sequence_).wait(run_));
    return {};
  }
  void close(bool written) {
    const ByteRange change{0, parts_[run_].filled};
    if (!uses_.empty()) {
      mover_.stager_of(sequence_).finish(
          run_, written ? std::span(&change, 1) : std::span<const ByteRange>());
    }
    ++run_;
    at_ = 0;
  }

  KvMover& mover_;
  KvSequence& sequence_;
  const int64_t layer_;
  std::vector<KvCache::RunPart> parts_;
  std::vector<SpillUse> uses_;  // On disk
  size_t run_ = 0;
  uint64_t at_ = 0;  // In the run
  std::byte* memory_ = nullptr;
};

// Through pieces of host memory of at most a run on disk, however long the sequence is.
Status KvMover::move(KvSequence& from, KvSequence& to, int64_t positions) {
  for (int64_t layer = from.layers.first; layer < from.layers.end() && positions > 0; ++layer) {
    SPILLWAY_CHECK(from.kind(layer).in_blocks());
    Writer writer(*this, to, layer, positions);
    uint64_t shared = static_cast<uint64_t>(to.shared_blocks) * cache_.layout().block_bytes();
    const Status read =
        read_runs(from, layer, positions, [&](const std::byte* bytes, uint64_t count) {
          const uint64_t there = std::min(shared, count);
          shared -= there;
          return writer.write(bytes + there, count - there);
        });
    const Status written = writer.end();
    SPILLWAY_RETURN_IF_ERROR(read);
    SPILLWAY_RETURN_IF_ERROR(written);
  }
  return {};
}

}  // namespace spillway
