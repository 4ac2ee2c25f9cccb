// Gives sequences their room in the KV cache: what they need when they begin and as they grow,
// behind the beginning of their prompt where another sequence has computed that already. Where
// there is no room, beginnings that nobody uses any more go first; the scheduler decides which
// sequence has to make room after that. Owned by the scheduler. Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <memory>

#include "scheduler/engine/engine.h"
#include "scheduler/kv_needs.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/seen_beginnings.h"
#include "scheduler/sequence.h"

namespace spillway {

class KvRoom {
 public:
  // `prefix_bytes`: the most that beginnings of prompts take; 0: none is shared. The engine must
  // outlive the object.
  KvRoom(Engine& engine, uint64_t prefix_bytes);

  // Whether requests may share beginnings at all: not in models with sliding windows, and not where
  // the CPU attends to a part of a GPU's cache.
  bool shares() const { return prefixes_.enabled(); }

  KvNeeds& needs() { return needs_; }
  const KvNeeds& needs() const { return needs_; }
  const PrefixCache& prefixes() const { return prefixes_; }

  // The most that all admitted sequences together may ever need, and bytes that sequences have or
  // share now.
  uint64_t promised_max() const;
  uint64_t used_bytes() const { return engine_.kv().reserved_bytes() - prefixes_.unused_bytes(); }

  // What a waiting sequence finds in the cache.
  struct Offer {
    int64_t cached = 0;         // Tokens of its prompt that are there
    bool better_later = false;  // Another sequence computes most of the others in these sweeps
    uint64_t bytes = 0;         // That it likely needs, beside those that others use
  };
  Offer offer(const Sequence& next);

  // Gives a sequence its cache and tells it that it is admitted. kCapacity: no room now. REQUIRES:
  // offer() was called for it since the last sweep.
  Status admit(Sequence& next, uint64_t number, double now);

  // Blocks for so many positions. False: no room now.
  bool grow(Sequence& sequence, int64_t positions);

  // Engine::set_aside() and bring_back().
  Status set_aside(Sequence& sequence);
  Status bring_back(Sequence& sequence);

  // After a sweep of the sequence: what it has computed may be shared.
  void end_sweep(const Sequence& sequence);

  // Allocates nothing.
  void release(Sequence& sequence);

 private:
  bool may_share(const Sequence& sequence) const;
  template <class Reserve>
  auto reserve(uint64_t bytes, const Reserve& try_reserve);
  Status reserve(Sequence& next, PrefixCache::Use use, int64_t cached, uint64_t number, double now);
  PrefixCache::Use extend(const Sequence& next, const PrefixCache::Found& found);

  Engine& engine_;
  KvNeeds needs_;
  PrefixCache prefixes_;
  SeenBeginnings seen_;
};

}  // namespace spillway
