// Prefetches the KV caches of a layer's micro-batch from host memory and disk, hands them to
// attention (resident ones at once, the others as they arrive), and writes back what the layer
// changed. A sequence whose cache cannot be read fails alone.
// Owned by the engine. Thread rule: the engine thread.
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
  // `stager` is null when the cache has no disk tier, `ring` when the device is not discrete or the
  // whole cache is resident on it. `host_attends`: next() leaves out decode steps over caches in
  // host memory. All must outlive the feed.
  KvFeed(KvCache& cache, SpillStager* stager, DeviceRing* ring, bool host_attends, Trace* trace);

  // Begins a sweep of these items and micro-batches, which must stay valid until its end.
  void begin_sweep(std::span<const SweepItem> items, std::span<const MicroBatch> batches);

  // Begins the next layer and micro-batch, in the order of the sweep.
  void begin(int64_t layer, const MicroBatch& batch);
  std::span<const AttentionItem> next() override;

  // The decode steps left to the CPU, with their caches in host memory, by row; until begin().
  std::span<const AttentionItem> host_items() const { return host_items_; }

  // Call after the last layer: blocks until all changes have left the device's memory and their
  // writes are queued.
  Status end_sweep();

  // The error that left an item without valid results, or OK.
  const Status& failure(size_t item) const { return failed_[item]; }

  void abandon();

  double wait_seconds() const { return wait_seconds_; }  // Of this sweep

 private:
  // A run of a cache that is not resident on the device: what is filled and needed of it.
  struct Part : KvCache::RunPart {
    std::byte* memory = nullptr;  // Host memory; null: not yet read, or failed
  };
  // An item whose cache is not resident on the device.
  struct Staged {
    size_t item;
    AttentionItem attention;
    Tier tier;
    size_t use;                // The stager's first, if on disk: one for each part
    size_t first_part, parts;  // In parts_
    bool there = false;        // All parts are in host memory.
    bool uploaded = false;     // Into the ring
  };
  // Uses of the stager that are finished once their bytes are copied back from the device.
  struct WriteBack {
    Staged staged;
    std::vector<Part> parts;  // Its own, since the next layer's replace the others
    Event written_back;
  };
  void add_staged(size_t item, const AttentionItem& attention);
  void finish_handed_out();
  void finish(const Staged& staged);
  void finish_uses(const Staged& staged, std::span<const Part> parts);
  void find_changes(const Staged& staged, std::byte* memory);
  std::span<Part> parts_of(const Staged& staged) {
    return std::span(parts_).subspan(staged.first_part, staged.parts);
  }
  // Calls part_changed(part, range in the part) for each part that a range of the layer, as if it
  // lay in one piece, lies in.
  template <class Changed>
  static void for_parts(std::span<const Part> parts, const ByteRange& range,
                        const Changed& part_changed);
  void finish_write_backs(bool wait);
  bool there(const Staged& staged);
  void fetch(Staged& staged);
  bool upload(Staged& staged);
  void prefetch_next_sweep(std::span<const SweepItem> items, const LayerRange& layers);
  int64_t tokens(const Staged& staged) const;

  KvCache& cache_;
  SpillStager* stager_;
  DeviceRing* ring_;
  const bool host_attends_;
  Trace* trace_;
  Trace::Track track_{};
  std::span<const SweepItem> items_;
  std::vector<Status> failed_;              // By item
  std::vector<SpillUse> uses_, last_uses_;  // This sweep's and the last one's
  std::vector<ByteRange> changes_;          // In one layer of one sequence, or a part of it
  std::vector<ByteRange> part_changes_;

  int64_t layer_ = 0;
  std::vector<AttentionItem> resident_;  // In this layer and micro-batch
  std::vector<AttentionItem> host_items_;
  std::vector<Staged> staged_;
  std::vector<Part> parts_;              // Of the staged items
  std::vector<KvCache::RunPart> found_;  // Of one of them
  // Block tables of staged items that lie in several pieces: on a device with the host's memory, or
  // with shared blocks.
  std::vector<std::byte*> tables_;
  std::vector<DeviceRing::Part> copies_;  // Of one of them
  std::vector<AttentionItem> ready_;      // The staged items handed out last
  size_t next_staged_ = 0;                // Into staged_: the next to wait for
  size_t finished_staged_ = 0;
  size_t next_use_ = 0;  // The stager's next use in the sweep
  std::deque<WriteBack> write_backs_;
  double wait_seconds_ = 0;
};

}  // namespace spillway
