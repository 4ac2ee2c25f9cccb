// Gives sequences their room in the KV cache: what they need when they begin and as they grow,
// behind the beginning of their prompt where another sequence has computed that already. Where
// there is no room, beginnings that nobody uses any more go first; the scheduler decides which
// sequence has to make room after that.
//
// Sequences that keep every row write their prompts where others find them (PrefixCache). Under a
// limited rule a prompt leaves nothing to share: where an earlier one began alike, the next one
// computes that beginning by itself first, for all that follow (WholeBeginnings).
//
// Owned by the scheduler. Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <memory>

#include "scheduler/engine/engine.h"
#include "scheduler/kv_needs.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/seen_beginnings.h"
#include "scheduler/sequence.h"
#include "scheduler/stages/other_ranks.h"
#include "scheduler/whole_beginnings.h"

namespace spillway {

class KvRoom {
 public:
  // `prefix_bytes`: the most that beginnings of prompts take; 0: none is shared. `others`: the
  // other ranks, whose caches hold the same sequences, or null. Both must outlive the object.
  // REQUIRES: with other ranks nothing is shared or set aside.
  KvRoom(Engine& engine, uint64_t prefix_bytes, OtherRanks* others = nullptr);

  // Whether requests may share beginnings at all: not in models with sliding windows, and not where
  // the CPU attends to a part of a GPU's cache.
  bool shares() const { return prefix_bytes_max_ > 0; }

  KvNeeds& needs() { return needs_; }

  // The most that all admitted sequences together may ever need.
  uint64_t promised_max() const;
  // Bytes that sequences have or share now; of beginnings, those that sequences use, and all.
  uint64_t used_bytes() const { return engine_.kv().reserved_bytes() - unused_bytes(); }
  uint64_t prefix_used_bytes() const { return prefixes_.used_bytes() + whole_.used_bytes(); }
  uint64_t prefix_bytes() const { return prefixes_.bytes() + whole_.bytes(); }

  // Tokens of prompts that were looked up when they were admitted, and of these those found.
  uint64_t prefix_queries() const { return prefix_queries_; }
  uint64_t prefix_hits() const { return prefix_hits_; }

  // What a waiting sequence finds in the cache.
  struct Offer {
    int64_t cached = 0;  // Tokens of its prompt that are there
    // Tokens of its prompt that it computes for others to share, before it computes the rest; 0: it
    // does not.
    int64_t begins = 0;
    bool better_later = false;  // Another sequence computes most of the others in these sweeps.
    uint64_t bytes = 0;         // That it likely needs, beside those that others use
  };
  // `rest_max`: the most tokens that may be left for the sweep after, of a prompt whose beginning
  // it computes for others first; 0: it does not.
  Offer offer(const Sequence& next, int64_t rest_max);

  // Gives a sequence its cache and tells it that it is admitted. kCapacity: no room now.
  Status admit(Sequence& next, const Offer& offer, uint64_t number, double now);

  // Blocks for so many positions. False: no room now.
  bool grow(Sequence& sequence, int64_t positions);

  // Engine::set_aside() and bring_back().
  Status set_aside(Sequence& sequence);
  Status bring_back(Sequence& sequence);

  // After a sweep of the sequence: what it has computed of its prompt may be shared.
  void end_sweep(Sequence& sequence);

  void release(Sequence& sequence);

 private:
  bool may_share(const Sequence& sequence) const;
  void offer_prefix(const Sequence& next, Offer* offer);
  void offer_beginning(const Sequence& next, int64_t rest_max, Offer* offer);
  Status admit_behind_prefix(Sequence& next, uint64_t number, double now);
  Status admit_behind_beginning(Sequence& next, const Offer& offer, uint64_t number, double now);
  Result<std::unique_ptr<KvSequence>> reserve(const SequenceKv& promise, int64_t rows_now,
                                              std::span<const KvPages* const> beginning);
  Status reserve_and_admit(Sequence& next, PrefixCache::Use prefix, int64_t cached, uint64_t number,
                           double now);

  PrefixCache::Use extend(const Sequence& next, const PrefixCache::Found& found);
  WholeBeginnings::Found find_beginning(const Sequence& next);
  WholeBeginnings::Use add_beginning(const Sequence& next, int64_t tokens);
  uint64_t blocks_bytes(int64_t blocks) const {
    return static_cast<uint64_t>(blocks) * engine_.kv().page_bytes();
  }

  // What sequences on any tier, and pages on the device, may get if unused beginnings go.
  uint64_t free_bytes() const { return engine_.kv().total_bytes() - used_bytes(); }
  uint64_t device_free_bytes() const { return engine_.kv().memory_free_bytes() + unused_bytes(); }
  uint64_t unused_bytes() const { return prefix_bytes() - prefix_used_bytes(); }
  // Whether the cache has other tiers than the device's memory.
  bool has_tiers() const { return engine_.kv().host_bytes() + engine_.kv().disk_bytes() > 0; }
  KvVacant vacant() const { return {has_tiers() ? unused_bytes() : 0}; }
  bool within_prefix_limit(uint64_t bytes);
  bool evict() { return prefixes_.evict() || whole_.evict(); }

  Engine& engine_;
  OtherRanks* const others_;
  KvNeeds needs_;
  const uint64_t prefix_bytes_max_;
  PrefixCache prefixes_;
  WholeBeginnings whole_;
  SeenBeginnings seen_;
  uint64_t prefix_queries_ = 0, prefix_hits_ = 0;
};

}  // namespace spillway
