// Hands a layer the KV caches of its micro-batch: those in the device's memory at once, the others
// as they arrive from host memory and disk, and sends home what the layer changed. A sequence whose
// cache cannot be brought fails alone.
//
// Owned by the engine; its thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/trace.h"
#include "kernels/decoder_layer.h"
#include "offload/device_ring.h"
#include "offload/io/spill_stager.h"
#include "offload/kv_cache.h"
#include "scheduler/engine/sweep.h"

namespace spillway {

class KvFeed final : public AttentionFeed {
 public:
  // `stager` is null when the cache has no disk tier, `ring` when the device has no memory of its
  // own or nothing of the cache is elsewhere. `host_attends`: decode steps over caches in host
  // memory are not handed out by next(). All must outlive the feed.
  KvFeed(KvCache& cache, SpillStager* stager, DeviceRing* ring, bool host_attends, Trace* trace);

  // The sweep's items and micro-batches, which must stay until its end.
  void begin_sweep(std::span<const SweepItem> items, std::span<const MicroBatch> batches);

  // The next layer and micro-batch, in the order of the sweep.
  void begin(int64_t layer, const MicroBatch& batch);
  std::span<const AttentionItem> next() override;

  // Those steps of the micro-batch, with their caches where they lie, by row; until begin().
  std::span<const AttentionItem> host_items() const { return host_items_; }

  // After the last layer: blocks until what goes home is out of the device's memory and on its way.
  Status end_sweep();

  // Why an item has no valid results, or OK.
  const Status& failure(size_t item) const { return failed_[item]; }

  void abandon();

  double wait_seconds() const { return wait_seconds_; }  // Of this sweep

 private:
  // An item whose cache is elsewhere.
  struct Staged {
    size_t item;
    AttentionItem attention;
    Tier tier;
    size_t use;                   // Of the stager, if from disk
    std::byte* memory = nullptr;  // Of the host; null: not yet there, or failed
    bool brought = false;         // Into the ring
  };
  // A use of the stager that is finished when its bytes are back from the device.
  struct WriteBack {
    Staged staged;
    Event home;
  };
  void finish_handed_out();
  void finish(const Staged& staged);
  void finish_use(const Staged& staged);
  void finish_left(bool wait);
  bool there(const Staged& staged);
  void fetch(Staged& staged);
  bool bring(Staged& staged);
  void prefetch_next_sweep(std::span<const SweepItem> items, const LayerRange& layers);
  int64_t tokens(const Staged& staged) const;
  KvCache::Layer layer_at(const Staged& staged, std::byte* memory) const;

  KvCache& cache_;
  SpillStager* stager_;
  DeviceRing* ring_;
  const bool host_attends_;
  Trace* trace_;
  Trace::Track track_{};
  std::span<const SweepItem> items_;
  std::vector<Status> failed_;              // By item
  std::vector<SpillUse> uses_, last_uses_;  // What the stager was told, and the sweep before
  std::vector<ByteRange> changes_;          // Of one layer of one sequence

  int64_t layer_ = 0;
  std::vector<AttentionItem> resident_;  // Of this layer and micro-batch
  std::vector<AttentionItem> host_items_;
  std::vector<Staged> staged_;
  std::vector<AttentionItem> ready_;  // Handed out last, of those staged
  size_t next_staged_ = 0;            // Of staged_, to be waited for
  size_t finished_staged_ = 0;
  size_t next_use_ = 0;  // Of the stager in the sweep
  std::deque<WriteBack> write_backs_;
  double wait_seconds_ = 0;
};

}  // namespace spillway
