// Moves the caches of sequences between tiers, between sweeps: aside, to make room for others, and
// back. Reads them, too, for whoever looks into a cache. What it holds of a cache at a time is one
// run on disk, however long the sequence is.
// Owned by the engine. Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "offload/io/spill_stager.h"
#include "offload/kv_cache.h"

namespace spillway {

class KvMover {
 public:
  // `on_disk` and `aside` read and write the scratch file: the cache's part of it, and that of
  // sequences set aside; each null where there is none. All must outlive the mover.
  KvMover(Device& device, Stream& stream, KvCache& cache, SpillStager* on_disk, SpillStager* aside)
      : device_(device), stream_(stream), cache_(cache), on_disk_(on_disk), aside_(aside) {}

  // Copies a layer after `positions` positions, from the tier it lives on. Blocks.
  Status read(KvSequence& sequence, int64_t layer, int64_t positions, std::vector<std::byte>* state,
              std::vector<std::byte>* rows);

  // Copies all layers of `from`, which has `positions` positions, to `to`, except those blocks that
  // `to` shares. Blocks. REQUIRES: the blocks of every layer may lie apart (KvLayer::in_blocks()).
  Status move(KvSequence& from, KvSequence& to, int64_t positions);

 private:
  class Writer;
  using TakeBytes = std::function<Status(const std::byte* bytes, uint64_t count)>;

  Status read_runs(KvSequence& sequence, int64_t layer, int64_t positions, const TakeBytes& take);
  Status read_memory(const std::byte* from, uint64_t bytes, const TakeBytes& take);
  SpillStager& stager_of(const KvSequence& sequence) {
    return sequence.aside ? *aside_ : *on_disk_;
  }

  Device& device_;
  Stream& stream_;
  KvCache& cache_;
  SpillStager* const on_disk_;
  SpillStager* const aside_;
  std::vector<std::byte> piece_;  // Of a discrete device's memory, on its way
};

}  // namespace spillway
