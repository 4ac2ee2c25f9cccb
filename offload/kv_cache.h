// The KV cache of all sequences, over the tiers: a region of the device's memory, one of host
// memory (for a discrete device), and one of a scratch file. Each sequence gets a reservation for
// the most rows it can ever have, made at admission and never changed, so that no sequence is ever
// evicted. A layer of a sequence, laid out as kernels/kv_layout.h says, is wholly in one tier;
// layers on slower tiers are spread evenly, so that every layer of a sweep moves the same amount
// over a link. In front of a layer lies the state of a limited budget (kernels/kv_state.h), on disk
// in sectors of its own, since every step changes it.
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

// A sequence's reservation in the cache.
struct KvSequence {
  int64_t rows = 0;  // Most positions it can have
  KvBudget budget;   // Which of them are kept
  // The length of a prompt that goes through in chunks, whose rows are all cached until its end; 0:
  // it goes through at once.
  int64_t chunked_prompt = 0;
  LayerRange layers;
  uint64_t state_bytes = 0;  // In front of the rows of a layer in memory
  uint64_t disk_state_bytes() const { return round_up(state_bytes, kIoAlignment); }
  uint64_t memory_offset = 0, host_offset = 0, memory_layer_bytes = 0;
  int64_t host_layers = 0;
  uint64_t disk_offset = 0, disk_layer_bytes = 0;
  std::vector<SpilledObject> spilled;  // The layers on disk, in order

  int64_t disk_layers() const { return static_cast<int64_t>(spilled.size()); }
  // Number of layers before `layer` that are on disk.
  int64_t disk_layers_before(int64_t layer) const {
    return (layer - layers.first) * disk_layers() / layers.count;
  }
  bool on_disk(int64_t layer) const {
    return disk_layers_before(layer + 1) != disk_layers_before(layer);
  }
  // Number of layers before `layer` that are in host memory, spread among those not on disk.
  int64_t host_layers_before(int64_t layer) const {
    const int64_t others = layers.count - disk_layers();
    return others == 0 ? 0 : others_before(layer) * host_layers / others;
  }
  // Number of layers before `layer` that are in memory, the device's or the host's.
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
  LayerRange layers;           // The cached layers, by the model's numbers
  uint64_t memory_bytes = 0;   // Device memory
  uint64_t disk_bytes = 0;     // Size of the scratch file
  uint64_t staging_bytes = 0;  // Staging memory for layers on disk
  // For a discrete device: host memory for layers, and the device's staging ring for layers that
  // are not resident on it.
  uint64_t host_bytes = 0;
  uint64_t device_staging_bytes = 0;
};

class KvCache {
 public:
  // Allocates the cache's memory; its pages are faulted in when sequences first use them.
  static Result<std::unique_ptr<KvCache>> open(Device& device, const KvCacheOptions& options);
  // Prefaults all pages of the cache.
  void prefault(Device& device) const;

  const KvLayout& layout() const { return options_.layout; }
  uint64_t memory_bytes() const { return memory_.total(); }
  uint64_t host_bytes() const { return host_.total(); }
  uint64_t disk_bytes() const { return disk_.total(); }
  uint64_t total_bytes() const { return memory_.total() + host_.total() + disk_.total(); }
  uint64_t reserved_bytes() const {
    return memory_.reserved() + host_.reserved() + disk_.reserved();
  }

  // Bytes that a sequence of `rows` positions takes over all layers in memory. `chunked_prompt`
  // here and below: KvSequence::chunked_prompt.
  uint64_t sequence_bytes(int64_t rows, const KvBudget& budget = {},
                          int64_t chunked_prompt = 0) const;

  // Number of such sequences that an empty cache holds.
  int64_t sequences_at_once(int64_t rows, const KvBudget& budget = {},
                            int64_t chunked_prompt = 0) const;

  // kInvalidArgument: even an empty cache cannot hold one such sequence, or the staging one layer
  // of it.
  Status check_holds(int64_t rows, const KvBudget& budget = {}, int64_t chunked_prompt = 0) const;

  // Reserves `rows` positions; a budget that is not full keeps fewer of them, but not before the
  // end of a prompt in chunks. Splits the layers over the tiers as nearly as possible in proportion
  // to the tiers' sizes. kCapacity: not enough free bytes now.
  Result<std::unique_ptr<KvSequence>> reserve(int64_t rows, const KvBudget& budget = {},
                                              int64_t chunked_prompt = 0);

  // REQUIRES: no transfer of the sequence is under way.
  void release(std::unique_ptr<KvSequence> sequence);

  // A sequence's cache of one layer.
  struct Layer {
    std::byte* state = nullptr;  // Null when everything is kept
    std::byte* rows = nullptr;
  };
  // The addresses of a layer in memory. REQUIRES: not on_disk(layer).
  Layer layer(const KvSequence& sequence, int64_t layer) const;
  // The addresses of a layer on disk whose bytes are staged in `memory`.
  Layer staged_layer(const KvSequence& sequence, std::byte* memory) const;

  // Bytes of a layer after `positions` positions, state and rows, in memory or as on disk.
  uint64_t used_bytes(const KvSequence& sequence, int64_t positions, bool as_on_disk) const;
  // Bytes that a sweep needs that adds `tokens` positions after `position`: those after it, or more
  // where it ends a prompt in chunks, of whose rows only a part stays.
  uint64_t needed_bytes(const KvSequence& sequence, int64_t position, int64_t tokens,
                        bool as_on_disk) const;

  KvStateLayout state_layout(const KvSequence& sequence) const {
    return {layout().heads, sequence.budget};
  }

  // The staged use of a layer on disk in a sweep that adds `tokens` positions after `position`.
  SpillUse use(KvSequence& sequence, int64_t layer, int64_t position, int64_t tokens) const;

  // Byte ranges of a layer, from its beginning, that this sweep has changed: in order, in whole KV
  // blocks. REQUIRES: the sweep's work is done, or the positions are of a prompt, or the budget has
  // no state.
  void find_changes(const KvSequence& sequence, const Layer& layer, int64_t position,
                    int64_t tokens, std::vector<ByteRange>* changes) const;

  // Bytes of a layer of `rows` positions on disk, and in the staging ring.
  uint64_t disk_layer_bytes(int64_t rows, const KvBudget& budget, int64_t chunked_prompt = 0) const;

  void verify() const;

 private:
  KvCache(Buffer buffer, Buffer host, const KvCacheOptions& options);
  uint64_t state_bytes(const KvBudget& budget, int64_t chunked_prompt) const;
  uint64_t row_bytes(int64_t rows, const KvBudget& budget, int64_t chunked_prompt) const;
  uint64_t layer_bytes(int64_t rows, const KvBudget& budget, int64_t chunked_prompt) const;
  bool try_reserve(KvSequence* sequence, int64_t disk_layers);
  bool try_reserve(KvSequence* sequence, int64_t disk_layers, int64_t host_layers);

  Buffer buffer_, host_buffer_;
  KvCacheOptions options_;
  RangeAllocator memory_, host_, disk_;
};

}  // namespace spillway
