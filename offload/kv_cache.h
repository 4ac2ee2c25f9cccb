// The KV cache of all sequences, over the tiers: a region of the device's memory, one of host
// memory (for a discrete device), and one of a scratch file. A layer of a sequence, laid out as
// kernels/kv_layout.h says, is wholly in one tier; layers on slower tiers are spread evenly, those
// with a sliding window and those without each among themselves, so that every layer of a sweep
// moves the same amount over a link.
//
// The KV blocks of a layer that keeps every row lie in runs wherever there is room, and a block
// table finds them (PagedAttention, arXiv 2309.06180): free room in small pieces is room, too, and
// a sequence gets blocks as it grows. A limited budget's layer lies in one piece, reserved whole:
// its state (kernels/kv_state.h), on disk in sectors of its own, since every step changes it, and
// its rows behind it.
//
// Sequences whose prompts begin alike may share the KV blocks of that beginning (KvPages), which
// lie in the device's memory, whatever tier a sequence's own rows are on: each step of each of them
// reads them.
//
// A second region of the scratch file is for sequences that were set aside to make room for others.
//
// Thread rule: the engine thread. Invariant: free + reserved bytes == total in each tier; no two
// reservations overlap (verify()).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/layer_range.h"
#include "kernels/base/status.h"
#include "kernels/device.h"
#include "kernels/kv_layout.h"
#include "kernels/kv_state.h"
#include "offload/io/io.h"
#include "offload/io/range_allocator.h"
#include "offload/io/spill_stager.h"
#include "offload/kv_layer.h"
#include "offload/kv_sequence.h"
#include "offload/tier.h"

namespace spillway {

struct KvCacheOptions {
  KvLayout layout;
  LayerRange layers;           // The cached layers, by the model's numbers
  uint64_t memory_bytes = 0;   // Device memory
  uint64_t disk_bytes = 0;     // Of the scratch file, from its beginning
  uint64_t aside_bytes = 0;    // Of it, behind these: for sequences set aside
  uint64_t staging_bytes = 0;  // Staging memory for layers on disk
  // For a discrete device: host memory for layers, and the device's staging ring for layers that
  // are not resident on it.
  uint64_t host_bytes = 0;
  uint64_t device_staging_bytes = 0;
  int64_t window = 0;             // ModelShape::sliding_window
  std::vector<uint8_t> windowed;  // ModelShape::sliding_layers, by the model's numbers
};

// Pages that would be given up for a sequence: its layers are split over the tiers as if these were
// free, to within an eighth of the layers, or it is not placed.
struct KvVacant {
  uint64_t bytes = 0;  // 0: there are none, and it is placed wherever there is room
};

class KvCache {
 public:
  // Allocates the cache's memory; its pages are faulted in when sequences first use them.
  static Result<std::unique_ptr<KvCache>> open(Device& device, const KvCacheOptions& options);
  // A cache with addresses and without memory: it says what another one with these options has room
  // for, and where, as long as both reserve and release the same in the same order.
  static Result<std::unique_ptr<KvCache>> open_books(const KvCacheOptions& options);

  // Prefaults all pages of the cache.
  void prefault(Device& device) const;

  const KvCacheOptions& options() const { return options_; }
  const KvLayout& layout() const { return options_.layout; }
  const LayerRange& layers() const { return options_.layers; }
  uint64_t memory_bytes() const { return memory_.total(); }
  uint64_t host_bytes() const { return host_.total(); }
  uint64_t disk_bytes() const { return disk_.total(); }
  uint64_t total_bytes() const { return memory_.total() + host_.total() + disk_.total(); }
  uint64_t memory_free_bytes() const { return memory_.total() - memory_.reserved(); }
  uint64_t reserved_bytes() const {
    return memory_.reserved() + host_.reserved() + disk_.reserved();
  }

  // Bytes that a sequence of `rows` positions takes over all layers in memory. `budget` here and
  // below: of layers without a window; those with one keep what lies within it, too.
  uint64_t sequence_bytes(int64_t rows, const KvBudget& budget = {},
                          const KvChunks& chunks = {}) const;

  // Number of such sequences that an empty cache holds.
  int64_t sequences_at_once(int64_t rows, const KvBudget& budget = {},
                            const KvChunks& chunks = {}) const;

  // kInvalidArgument: even an empty cache cannot hold one such sequence, or the staging one layer
  // of it.
  Status check_holds(int64_t rows, const KvBudget& budget = {}, const KvChunks& chunks = {}) const;

  // Reserves `rows` positions; a budget that is not full keeps fewer of them, but not before the
  // end of a prompt in chunks. Splits the layers over the tiers as nearly as possible in proportion
  // to the tiers' sizes. `rows_now`: the positions for which layers that grow get blocks now; 0:
  // all. `beginning`: pages of its first positions, one behind another, which must outlive it.
  // kCapacity: not enough free bytes now. REQUIRES with a beginning: no window, a full budget,
  // chunks of a longer prompt.
  Result<std::unique_ptr<KvSequence>> reserve(int64_t rows, const KvBudget& budget = {},
                                              const KvChunks& chunks = {}, int64_t rows_now = 0,
                                              std::span<const KvPages* const> beginning = {},
                                              const KvVacant& vacant = {});

  // Pages of so many KV blocks; none: the device's memory has no room for them now. With a `scored`
  // budget, of the beginning of a prompt of so many tokens, with their scores.
  std::optional<KvPages> reserve_pages(int64_t blocks, const KvBudget& scored = {},
                                       int64_t prompt = 0);
  // Puts pages in front of a sequence under a limited budget until its prompt's end. REQUIRES: no
  // window; its prompt goes through in at most two parts, the pages and the rest.
  void begin_behind(KvSequence* sequence, const KvPages& pages) const;
  // REQUIRES: no sequence has them.
  void release(const KvPages& pages);
  // Bytes of a KV block in all layers.
  uint64_t page_bytes() const {
    return static_cast<uint64_t>(options_.layers.count) * layout().block_bytes();
  }

  // Blocks for as many positions, at most the reserved ones, in layers that grow; some more where
  // there is room. False: there is not enough now, and nothing has changed. Call between sweeps.
  bool grow(KvSequence& sequence, int64_t positions);

  // A sequence with the same layers in the region for sequences set aside, for its first
  // `positions` positions. kCapacity: no room there.
  Result<std::unique_ptr<KvSequence>> reserve_aside(const KvSequence& sequence, int64_t positions);
  uint64_t aside_bytes() const { return aside_.total(); }

  // REQUIRES: no transfer of the sequence is under way.
  void release(std::unique_ptr<KvSequence> sequence);

  // A sequence's cache of one layer.
  struct Layer {
    std::byte* state = nullptr;  // Null when everything is kept
    KvBlocks rows;
  };
  // The addresses of a layer in memory. REQUIRES: not on_disk(layer).
  Layer layer(const KvSequence& sequence, int64_t layer) const;
  // The addresses of a layer in one piece whose bytes, as its tier has them, are at `memory`.
  static Layer layer_at(const KvSequence& sequence, int64_t layer, std::byte* memory);
  // The address of one of a layer's runs off the disk. REQUIRES: not on_disk(layer).
  std::byte* run_at(const KvSequence& sequence, int64_t layer, size_t run) const;

  // KvSequence's functions of the same names, with this layout.
  uint64_t used_bytes(const KvSequence& sequence, int64_t layer, int64_t positions,
                      bool as_on_disk) const {
    return sequence.used_bytes(layout(), layer, positions, as_on_disk);
  }
  uint64_t needed_bytes(const KvSequence& sequence, int64_t layer, int64_t position, int64_t tokens,
                        bool as_on_disk) const {
    return sequence.needed_bytes(layout(), layer, position, tokens, as_on_disk);
  }

  KvStateLayout state_layout(const KvSequence& sequence, int64_t layer) const {
    return {layout().heads, sequence.budget(layer)};
  }

  using RunPart = KvSequence::RunPart;
  void find_parts(const KvSequence& sequence, int64_t layer, int64_t position, int64_t tokens,
                  std::vector<RunPart>* parts) const {
    sequence.find_parts(layout(), layer, position, tokens, parts);
  }
  void add_uses(KvSequence& sequence, int64_t layer, int64_t position, int64_t tokens,
                std::vector<SpillUse>* uses) const {
    sequence.add_uses(layout(), layer, position, tokens, uses);
  }
  void find_changes(const KvSequence& sequence, int64_t layer, std::byte* state, int64_t position,
                    int64_t tokens, std::vector<ByteRange>* changes) const {
    sequence.find_changes(layout(), layer, state, position, tokens, changes);
  }

  // KvLayer::staged_bytes() of a layer of `rows` positions, the largest of them.
  uint64_t staged_layer_bytes(int64_t rows, const KvBudget& budget,
                              const KvChunks& chunks = {}) const;

  void verify() const;

 private:
  KvCache(Buffer buffer, Buffer host, const KvCacheOptions& options);
  bool has_window(int64_t layer) const {
    return options_.window > 0 &&
           (options_.windowed.empty() || options_.windowed[static_cast<size_t>(layer)] != 0);
  }
  KvSequence unplaced(int64_t rows, const KvBudget& budget, const KvChunks& chunks) const;
  void share(KvSequence* sequence, std::span<const KvPages* const> beginning) const;
  template <class Take>
  bool split(const TierBytes& reserved, const Take& take, KvSequence* sequence,
             bool near = false) const;
  bool take(KvSequence* sequence, int64_t rows);
  bool take(const KvSequence& sequence, int64_t blocks, KvSequence::Place* place);
  bool take_blocks(RangeAllocator& from, uint64_t base, bool disk, int64_t blocks,
                   std::vector<KvRun>* runs) const;
  void give_back(KvSequence* sequence);
  RangeAllocator& region(const KvSequence& sequence, const KvSequence::Place& place);
  void place(KvSequence* sequence) const;
  void add_addresses(const KvPages& pages, size_t layer, std::vector<std::byte*>* table) const;
  void fill_shared(KvSequence* sequence, std::span<const KvPages* const> beginning) const;
  void fill_tables(KvSequence* sequence) const;

  Buffer buffer_, host_buffer_;
  KvCacheOptions options_;
  std::array<int64_t, 2> layers_{};  // Without a window, and with one
  RangeAllocator memory_, host_, disk_;
  RangeAllocator aside_;  // Offsets from its beginning
};

}  // namespace spillway
