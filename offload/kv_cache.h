// The key/value memory of all sequences, over the tiers: a region of the device's memory, one of
// the host's where that is another, and one of a scratch file. Each sequence gets a reservation for
// the most rows it can ever have, promised at admission and never changed, so that none is ever
// evicted. A layer of a sequence, laid out as kernels/kv_layout.h says, is wholly in one
// tier; layers on slower tiers are spread evenly, so that every layer of a sweep asks a link for
// the same amount. In front of it lies what a limited budget has_state (kernels/kv_state.h), on
// disk in sectors of its own, since every step changes it.
//
// Thread rule: the engine thread. Invariant: free + reserved bytes == total in each tier; no two
// reservations overlap (verify()).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/checked_math.h"
#include "kernels/base/layer_range.h"
#include "kernels/base/status.h"
#include "kernels/device.h"
#include "kernels/kv_layout.h"
#include "kernels/kv_state.h"
#include "offload/io/io.h"
#include "offload/io/range_allocator.h"
#include "offload/io/spill_stager.h"
#include "offload/tier.h"

namespace spillway {

// A sequence's place in the cache.
struct KvSequence {
  int64_t rows = 0;  // Positions it can ever have
  KvBudget budget;   // What is kept of them
  LayerRange layers;
  uint64_t state_bytes = 0;  // In front of the rows of a layer in memory
  uint64_t disk_state_bytes() const { return round_up(state_bytes, kIoAlignment); }
  uint64_t memory_offset = 0, host_offset = 0, memory_layer_bytes = 0;
  int64_t host_layers = 0;
  uint64_t disk_offset = 0, disk_layer_bytes = 0;
  std::vector<SpilledObject> spilled;  // The layers on disk, in order

  int64_t disk_layers() const { return static_cast<int64_t>(spilled.size()); }
  // How many of the layers before `layer` are on disk.
  int64_t disk_layers_before(int64_t layer) const {
    return (layer - layers.first) * disk_layers() / layers.count;
  }
  bool on_disk(int64_t layer) const {
    return disk_layers_before(layer + 1) != disk_layers_before(layer);
  }
  // The same of those in host memory, among the others.
  int64_t host_layers_before(int64_t layer) const {
    const int64_t others = layers.count - disk_layers();
    return others == 0 ? 0 : others_before(layer) * host_layers / others;
  }
  // Those in memory, of device or host.
  int64_t others_before(int64_t layer) const {
    return layer - layers.first - disk_layers_before(layer);
  }
  Tier tier(int64_t layer) const {
    if (on_disk(layer)) return Tier::kDisk;
    const bool host = host_layers_before(layer + 1) != host_layers_before(layer);
    return host ? Tier::kHost : Tier::kDevice;
  }
  uint64_t memory_bytes() const {
    return static_cast<uint64_t>(layers.count - disk_layers() - host_layers) * memory_layer_bytes;
  }
  uint64_t host_bytes() const { return static_cast<uint64_t>(host_layers) * memory_layer_bytes; }
  uint64_t disk_bytes() const { return static_cast<uint64_t>(disk_layers()) * disk_layer_bytes; }
};

struct KvCacheOptions {
  KvLayout layout;
  LayerRange layers;           // Whose cache it is; numbers of layers are the model's
  uint64_t memory_bytes = 0;   // Of the device
  uint64_t disk_bytes = 0;     // Room in the scratch file
  uint64_t staging_bytes = 0;  // Memory through which a layer on disk passes
  // A device with memory of its own: of the host, and through which layers that are not on the
  // device get there.
  uint64_t host_bytes = 0;
  uint64_t device_staging_bytes = 0;
};

class KvCache {
 public:
  // Takes the device memory; pages are touched when sequences first use them,
  static Result<std::unique_ptr<KvCache>> open(Device& device, const KvCacheOptions& options);
  // or all of them now.
  void prefault(Device& device) const;

  const KvLayout& layout() const { return options_.layout; }
  uint64_t memory_bytes() const { return memory_.total(); }
  uint64_t host_bytes() const { return host_.total(); }
  uint64_t disk_bytes() const { return disk_.total(); }
  uint64_t total_bytes() const { return memory_.total() + host_.total() + disk_.total(); }
  uint64_t reserved_bytes() const {
    return memory_.reserved() + host_.reserved() + disk_.reserved();
  }

  // Bytes that a sequence of `rows` positions takes over all layers in memory.
  uint64_t sequence_bytes(int64_t rows, const KvBudget& budget = {}) const;

  // How many such sequences an empty cache has room for.
  int64_t sequences_at_once(int64_t rows, const KvBudget& budget = {}) const;

  // kInvalidArgument: not even an empty cache has room for one, or the staging for a layer of it.
  Status check_holds(int64_t rows, const KvBudget& budget = {}) const;

  // Room for `rows` positions; a budget that is not full keeps fewer than these. Keeps the shares
  // of the tiers as near as possible to those of their sizes. kCapacity: no room now.
  Result<std::unique_ptr<KvSequence>> reserve(int64_t rows, const KvBudget& budget = {});

  // REQUIRES: nothing of it is being transferred.
  void release(std::unique_ptr<KvSequence> sequence);

  // A sequence's cache of one layer.
  struct Layer {
    std::byte* state = nullptr;  // Null when everything is kept
    std::byte* rows = nullptr;
  };
  // Where it lies. REQUIRES: not on_disk(layer).
  Layer layer(const KvSequence& sequence, int64_t layer) const;
  // One on disk, of which `memory` holds the bytes.
  Layer staged_layer(const KvSequence& sequence, std::byte* memory) const;

  // Bytes of a layer after `positions` positions, state and rows, in memory or as on disk.
  uint64_t used_bytes(const KvSequence& sequence, int64_t positions, bool as_on_disk) const;

  KvStateLayout state_layout(const KvSequence& sequence) const {
    return {layout().heads, sequence.budget};
  }

  // The use that a sweep makes of a layer on disk, after `position` positions, for `tokens` more.
  SpillUse use(KvSequence& sequence, int64_t layer, int64_t position, int64_t tokens) const;

  // The bytes of a layer, from its beginning, that this sweep has changed, in order, by whole
  // blocks. REQUIRES: its work is done, or position is 0, or the budget has_state nothing.
  void find_changes(const KvSequence& sequence, const Layer& layer, int64_t position,
                    int64_t tokens, std::vector<ByteRange>* changes) const;

  // What a layer of `rows` positions takes on disk, and of the ring on its way.
  uint64_t disk_layer_bytes(int64_t rows, const KvBudget& budget) const;

  void verify() const;

 private:
  KvCache(Buffer buffer, Buffer host, const KvCacheOptions& options);
  uint64_t state_bytes(const KvBudget& budget) const;
  uint64_t layer_bytes(int64_t rows, const KvBudget& budget) const;
  bool try_reserve(KvSequence* sequence, int64_t disk_layers);
  bool try_reserve(KvSequence* sequence, int64_t disk_layers, int64_t host_layers);

  Buffer buffer_, host_buffer_;
  KvCacheOptions options_;
  RangeAllocator memory_, host_, disk_;
};

}  // namespace spillway
