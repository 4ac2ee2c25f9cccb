// A sequence's reservation in the KV cache: where its bytes lie on the tiers, and what a sweep
// reads and changes of them. Plain values, made and filled by KvCache. Engine thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "kernels/base/layer_range.h"
#include "kernels/kv_layout.h"
#include "offload/io/byte_range.h"
#include "offload/io/spill_stager.h"
#include "offload/kv_layer.h"
#include "offload/tier.h"

namespace spillway {

// Contiguous bytes of a layer, from `offset` of its tier on.
struct KvRun {
  uint64_t offset = 0, bytes = 0;
  int64_t blocks = 0;  // KV blocks
};

// KV blocks of all layers, in the device's memory: positions of the beginning of prompts. Once they
// are written nothing changes them.
struct KvPages {
  int64_t blocks = 0;
  std::vector<std::vector<KvRun>> runs;  // By layer, from the first one, in the order of the blocks
  // Of pages that are used whole by sequences under a limited budget that goes by scores: by layer,
  // the state of the prompt in chunks that computes them, with the scores of their positions at
  // `scores_at`, one KV head's every `scores_stride` numbers. Empty: none.
  std::vector<KvRun> states;
  uint64_t scores_at = 0;
  int64_t scores_stride = 0;

  // Takes off those behind the first `count`. REQUIRES: 0 < count < blocks.
  KvPages split_off(int64_t count, uint64_t block_bytes);
};

// A sequence's reservation in the cache. It stays where it is while it lives. In a sequence that
// shares the beginning of its prompt (shared_blocks), what is said of bytes, and the runs, are its
// own: those behind that.
struct KvSequence {
  // The layers without a window, and those with one.
  struct Kind : KvLayer {
    int64_t window = 0;  // 0: none
    int64_t layers = 0;
    int64_t on_disk = 0, on_host = 0;  // Of these
  };
  struct Place {
    Tier tier = Tier::kDevice;
    bool window = false;      // Of the second kind
    std::vector<KvRun> runs;  // In the order of the blocks; of a limited budget one, with its state
    // Where every row is kept, the block table, which attention reads: of the shared blocks, and,
    // off the disk, of those behind them.
    std::vector<std::byte*> table;
    std::deque<SpilledObject> spilled;  // On disk, by run
  };

  // The beginning of its prompt in pages, under a limited budget, which chooses what it keeps of it
  // at the prompt's end; until then its own rows are empty.
  struct Beginning {
    int64_t positions = 0;  // 0: there is none
    struct Layer {
      std::vector<std::byte*> table;
      std::byte* state = nullptr;
      const float* scores = nullptr;
    };
    std::vector<Layer> layers;  // From the first one
    int64_t scores_stride = 0;
  };

  KvSequence() = default;
  KvSequence(KvSequence&&) = default;
  KvSequence& operator=(KvSequence&&) = default;

  int64_t rows = 0;  // Most positions it can have
  // The length of a prompt that goes through in chunks, whose rows are cached until its end; 0: it
  // goes through at once.
  int64_t chunked_prompt = 0;
  int64_t shared_blocks = 0;  // Of KvPages, in front of its own
  LayerRange layers;
  std::array<Kind, 2> kinds;
  std::vector<Place> places;  // By layer, from the first one
  Beginning beginning;

  const Place& place(int64_t layer) const {
    return places[static_cast<size_t>(layer - layers.first)];
  }
  bool aside = false;  // All of its layers are in the region for sequences set aside.

  // Positions for which there are blocks; of layers in one piece all that it can have.
  int64_t positions() const;

  // Bytes of so many rows of a layer without state that are not of the shared blocks.
  uint64_t own_bytes(const KvLayout& layout, int64_t count) const {
    const uint64_t all = layout.sequence_bytes(count);
    return all - std::min(all, static_cast<uint64_t>(shared_blocks) * layout.block_bytes());
  }
  // Bytes of a layer after `positions` positions, state and rows, in memory or as on disk.
  uint64_t used_bytes(const KvLayout& layout, int64_t layer, int64_t positions,
                      bool as_on_disk) const;
  // Bytes that a sweep needs that adds `tokens` positions after `position`: those after it, or more
  // where it ends a prompt in chunks, of whose rows only a part stays.
  uint64_t needed_bytes(const KvLayout& layout, int64_t layer, int64_t position, int64_t tokens,
                        bool as_on_disk) const;

  // The parts of a layer's runs that such a sweep needs: of each run, in order, the bytes that are
  // filled before it, and those that it needs. Runs behind the last needed block are left out; none
  // where it needs nothing but shared blocks.
  struct RunPart {
    uint64_t filled = 0, needed = 0;
    int64_t blocks = 0;  // Needed
  };
  void find_parts(const KvLayout& layout, int64_t layer, int64_t position, int64_t tokens,
                  std::vector<RunPart>* parts) const;

  // The staged uses of a layer on disk in such a sweep, one for each of these parts, added to
  // `uses`.
  void add_uses(const KvLayout& layout, int64_t layer, int64_t position, int64_t tokens,
                std::vector<SpillUse>* uses);

  // Byte ranges of a layer, as if it lay in one piece, from its beginning, that this sweep has
  // changed: in order, in whole KV blocks. `state`: where the state lies. REQUIRES: the sweep's
  // work is done, or the positions are of a prompt, or the budget has no state.
  void find_changes(const KvLayout& layout, int64_t layer, std::byte* state, int64_t position,
                    int64_t tokens, std::vector<ByteRange>* changes) const;

  Place& place(int64_t layer) { return places[static_cast<size_t>(layer - layers.first)]; }
  const Kind& kind(int64_t layer) const { return kinds[place(layer).window ? 1 : 0]; }
  const KvBudget& budget(int64_t layer) const { return kind(layer).budget; }
  const Beginning::Layer& beginning_of(int64_t layer) const {
    return beginning.layers[static_cast<size_t>(layer - layers.first)];
  }
  // Whether its own rows are empty before `position`.
  bool begins_at(int64_t position) const {
    return position == 0 || (beginning.positions > 0 && position <= beginning.positions);
  }
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
  template <class Each>
  void for_parts(const KvLayout& layout, int64_t layer, int64_t position, int64_t tokens,
                 const Each& each) const;
  template <class Bytes>
  uint64_t sum(const Bytes& bytes) const {
    return bytes(kinds[0]) + bytes(kinds[1]);
  }
};

}  // namespace spillway
