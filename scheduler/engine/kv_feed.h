// Hands a layer the KV caches of its micro-batch: those in memory at once, those on disk as they
// arrive, and sends home what the layer added. A sequence whose cache cannot be brought fails
// alone.
//
// Owned by the engine; its thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/trace.h"
#include "kernels/decoder_layer.h"
#include "offload/kv_cache.h"
#include "offload/spill_stager.h"

namespace spillway {

// Shorter waits are none: what was waited for was there.
constexpr double kWaitShownSeconds = 5e-6;

// One sequence's part of a sweep: a whole prompt at position 0, or one token.
struct SweepItem {
  std::span<const int32_t> tokens;
  int64_t position = 0;
  KvSequence* kv = nullptr;
  bool all_logits = false;  // Of every token, else of the last one
  bool no_logits = false;
};

// Neighbouring items that are computed at once.
struct MicroBatch {
  size_t first_item = 0, items = 0;
  int64_t rows = 0;
};

class KvFeed final : public AttentionFeed {
 public:
  // `stager` is null when the cache has no disk tier. All must outlive the feed.
  KvFeed(KvCache& cache, SpillStager* stager, Trace* trace);

  // The sweep's items and micro-batches, which must stay until its end.
  void begin_sweep(std::span<const SweepItem> items, std::span<const MicroBatch> batches);

  // The next layer and micro-batch, in the order of the sweep.
  void begin(int64_t layer, const MicroBatch& batch);
  std::span<const AttentionItem> next() override;

  // Why an item has no valid results, or OK.
  const Status& failure(size_t item) const { return failed_[item]; }

  void abandon();

  double wait_seconds() const { return wait_seconds_; }  // Of this sweep

 private:
  struct Staged {
    size_t item;
    AttentionItem attention;
    KvCache::Layer layer;  // Once it is in memory
  };
  void finish_handed_out();
  void take(Staged& staged);

  KvCache& cache_;
  SpillStager* stager_;
  Trace* trace_;
  Trace::Track track_{};
  std::span<const SweepItem> items_;
  std::vector<Status> failed_;  // By item
  std::vector<SpillUse> uses_;
  std::vector<ByteRange> changes_;  // Of one layer of one sequence

  int64_t layer_ = 0;
  std::vector<AttentionItem> resident_;  // Of this layer and micro-batch
  std::vector<Staged> staged_;
  std::vector<AttentionItem> ready_;  // Handed out last, of those staged
  size_t next_staged_ = 0;            // Of staged_, to be waited for
  size_t finished_staged_ = 0;
  size_t first_use_ = 0;  // Of staged_[0] in the sweep
  double wait_seconds_ = 0;
};

}  // namespace spillway
