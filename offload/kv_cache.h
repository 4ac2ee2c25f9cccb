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
// A second region of the scratch file is for sequences that were set aside to make room for others.
//
// Thread rule: the engine thread. Invariant: free + reserved bytes == total in each tier; no two
// reservations overlap (verify()).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
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

// The chunks of a prompt that does not go through at once: its length, 0 if it does, and the most
// tokens of a chunk (0: any number).
struct KvChunks {
  int64_t prompt = 0, most = 0;
  KvChunks(int64_t prompt_tokens = 0, int64_t most_tokens = 0)  // NOLINT: a length says that
      : prompt(prompt_tokens), most(most_tokens) {}
};

// What one layer of a sequence takes of the cache. Layers with a sliding window keep other rows
// than those without, so that a sequence may have layers of two sizes.
struct KvLayer {
  KvBudget budget;           // Which positions are kept
  uint64_t state_bytes = 0;  // In front of the rows, in memory
  uint64_t memory_bytes = 0, disk_bytes = 0;
  // What staging memory must have for it: its runs one behind another in a ring, whose end none of
  // them goes around.
  uint64_t staged_bytes() const;
  // Whether its blocks may lie apart: those of a layer without state, which keeps every row.
  bool in_blocks() const { return budget.full() && state_bytes == 0; }
  uint64_t disk_state_bytes() const { return round_up(state_bytes, kIoAlignment); }
};
// Of a layer with a window (ModelShape::window(); 0: none), where the sequence may have `rows`
// positions and keeps what `budget` says.
KvLayer kv_layer(const KvLayout& layout, int64_t window, int64_t rows, const KvBudget& budget,
                 const KvChunks& chunks);

// Bytes over all layers of a model, and of the largest of them.
struct KvLayersBytes {
  uint64_t memory = 0, disk = 0;
  uint64_t largest_on_disk = 0, largest_staged = 0;
};
KvLayersBytes kv_layers_bytes(const ModelShape& shape, Format format, int64_t rows,
                              const KvBudget& budget, const KvChunks& chunks);

// A sequence's reservation in the cache. It stays where it is while it lives.
struct KvSequence {
  // The layers without a window, and those with one.
  struct Kind : KvLayer {
    int64_t window = 0;  // 0: none
    int64_t layers = 0;
    int64_t on_disk = 0, on_host = 0;  // Of these
  };
  // Contiguous bytes of a layer, from `offset` of its tier on.
  struct Run {
    uint64_t offset = 0, bytes = 0;
    int64_t blocks = 0;  // KV blocks
  };
  struct Place {
    Tier tier = Tier::kDevice;
    bool window = false;    // Of the second kind
    std::vector<Run> runs;  // In the order of the blocks; of a limited budget one, with its state
    // Off the disk, where every row is kept: the block table, which attention reads.
    std::vector<std::byte*> table;
    std::deque<SpilledObject> spilled;  // On disk, by run
  };

  KvSequence() = default;
  KvSequence(KvSequence&&) = default;
  KvSequence& operator=(KvSequence&&) = default;

  int64_t rows = 0;  // Most positions it can have
  // The length of a prompt that goes through in chunks, whose rows are cached until its end; 0: it
  // goes through at once.
  int64_t chunked_prompt = 0;
  LayerRange layers;
  std::array<Kind, 2> kinds;
  std::vector<Place> places;  // By layer, from the first one

  const Place& place(int64_t layer) const {
    return places[static_cast<size_t>(layer - layers.first)];
  }
  bool aside = false;  // All of its layers are in the region for sequences set aside.

  // Positions for which there are blocks; of layers in one piece all that it can have.
  int64_t positions() const;
  Place& place(int64_t layer) { return places[static_cast<size_t>(layer - layers.first)]; }
  const Kind& kind(int64_t layer) const { return kinds[place(layer).window ? 1 : 0]; }
  const KvBudget& budget(int64_t layer) const { return kind(layer).budget; }
  Tier tier(int64_t layer) const { return place(layer).tier; }
  bool on_disk(int64_t layer) const { return tier(layer) == Tier::kDisk; }
  int64_t disk_layers() const { return kinds[0].on_disk + kinds[1].on_disk; }
  int64_t host_layers() const { return kinds[0].on_host + kinds[1].on_host; }
  uint64_t memory_bytes() const {
    return sum([](const Kind& k) {
      return static_cast<uint64_t>(k.layers - k.on_disk - k.on_host) * k.memory_bytes;
    });
  }
  uint64_t host_bytes() const {
    return sum([](const Kind& k) { return static_cast<uint64_t>(k.on_host) * k.memory_bytes; });
  }
  uint64_t disk_bytes() const {
    return sum([](const Kind& k) { return static_cast<uint64_t>(k.on_disk) * k.disk_bytes; });
  }
  // A number of positions by layer, as the mean over the layers.
  template <class Of>
  double mean(const Of& of) const {
    double total = 0;
    int64_t count = 0;
    for (const Kind& k : kinds) {
      total += static_cast<double>(k.layers * of(k));
      count += k.layers;
    }
    return total / static_cast<double>(count);
  }

 private:
  template <class Bytes>
  uint64_t sum(const Bytes& bytes) const {
    return bytes(kinds[0]) + bytes(kinds[1]);
  }
};

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

class KvCache {
 public:
  // Allocates the cache's memory; its pages are faulted in when sequences first use them.
  static Result<std::unique_ptr<KvCache>> open(Device& device, const KvCacheOptions& options);
  // Prefaults all pages of the cache.
  void prefault(Device& device) const;

  const KvLayout& layout() const { return options_.layout; }
  const LayerRange& layers() const { return options_.layers; }
  uint64_t memory_bytes() const { return memory_.total(); }
  uint64_t host_bytes() const { return host_.total(); }
  uint64_t disk_bytes() const { return disk_.total(); }
  uint64_t total_bytes() const { return memory_.total() + host_.total() + disk_.total(); }
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
  // all. kCapacity: not enough free bytes now.
  Result<std::unique_ptr<KvSequence>> reserve(int64_t rows, const KvBudget& budget = {},
                                              const KvChunks& chunks = {}, int64_t rows_now = 0);

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
  // The beginnings of a layer's runs off the disk. REQUIRES: not on_disk(layer).
  std::byte* run_at(const KvSequence& sequence, int64_t layer, size_t run) const;

  // Bytes of a layer after `positions` positions, state and rows, in memory or as on disk.
  uint64_t used_bytes(const KvSequence& sequence, int64_t layer, int64_t positions,
                      bool as_on_disk) const;
  // Bytes that a sweep needs that adds `tokens` positions after `position`: those after it, or more
  // where it ends a prompt in chunks, of whose rows only a part stays.
  uint64_t needed_bytes(const KvSequence& sequence, int64_t layer, int64_t position, int64_t tokens,
                        bool as_on_disk) const;

  KvStateLayout state_layout(const KvSequence& sequence, int64_t layer) const {
    return {layout().heads, sequence.budget(layer)};
  }

  // The parts of a layer's runs that such a sweep needs: of each run, in order, the bytes that are
  // filled before it, and those that it needs. Runs behind the last needed block are left out.
  struct RunPart {
    uint64_t filled = 0, needed = 0;
    int64_t blocks = 0;  // Needed
  };
  void find_parts(const KvSequence& sequence, int64_t layer, int64_t position, int64_t tokens,
                  std::vector<RunPart>* parts) const;

  // The staged uses of a layer on disk in such a sweep, one for each of these parts, added to
  // `uses`.
  void add_uses(KvSequence& sequence, int64_t layer, int64_t position, int64_t tokens,
                std::vector<SpillUse>* uses) const;

  // Byte ranges of a layer, as if it lay in one piece, from its beginning, that this sweep has
  // changed: in order, in whole KV blocks. `state`: where the state lies. REQUIRES: the sweep's
  // work is done, or the positions are of a prompt, or the budget has no state.
  void find_changes(const KvSequence& sequence, int64_t layer, std::byte* state, int64_t position,
                    int64_t tokens, std::vector<ByteRange>* changes) const;

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
  template <class Take>
  bool split(const TierBytes& reserved, const Take& take, KvSequence* sequence) const;
  bool take(KvSequence* sequence, int64_t rows);
  bool take(const KvSequence& sequence, int64_t blocks, KvSequence::Place* place);
  void give_back(KvSequence* sequence);
  template <class Each>
  void for_parts(const KvSequence& sequence, int64_t layer, int64_t position, int64_t tokens,
                 const Each& each) const;
  RangeAllocator& region(const KvSequence& sequence, const KvSequence::Place& place);
  void place(KvSequence* sequence) const;
  void fill_tables(KvSequence* sequence) const;

  Buffer buffer_, host_buffer_;
  KvCacheOptions options_;
  std::array<int64_t, 2> layers_{};  // Without a window, and with one
  RangeAllocator memory_, host_, disk_;
  RangeAllocator aside_;  // Offsets from its beginning
};

}  // namespace spillway
