// The beginnings of prompts whose keys and values are in the KV cache: a tree over their tokens, in
// whole KV blocks (RadixAttention, Zheng et al. 2023, arXiv 2312.07104), so that prompts that begin
// alike compute and keep their common beginning once. An entry stays after the last sequence that
// uses it has ended, until its memory is needed: then those go first that were used least recently,
// the ends of prompts before their beginnings.
//
// Entries hold rows of prompts alone, never of generated tokens: a decode step sums in another
// order than a prompt, and a token must not depend on what is in the cache.
//
// Prompts with different salts share nothing.
//
// Thread rule: the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "offload/kv_cache.h"
#include "scheduler/request.h"

namespace spillway {

// KV blocks of a beginning that is worth a sweep of its own, at least.
constexpr int64_t kBeginningBlocks = 4;

class PrefixCache {
 public:
  // The cache must outlive the object.
  explicit PrefixCache(KvCache& cache);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // An entry: the pages of some KV blocks behind those of its parent.
  struct Entry;

  // Holds an entry, and with it all before it, in the cache.
  class Use {
   public:
    Use() = default;
    Use(PrefixCache& cache, Entry* entry);  // Of no entry: empty
    Use(Use&& other) noexcept;
    Use& operator=(Use&& other) noexcept;
    ~Use() { reset(); }
    // An entry that is not computed by then is removed.
    void reset();
    bool empty() const { return entry_ == nullptr; }
    int64_t blocks() const;  // From the beginning of the prompt
    // The pages from the beginning on; until the next call of find(), which may cut them.
    std::vector<const KvPages*> pages() const;

   private:
    friend class PrefixCache;
    PrefixCache* cache_ = nullptr;
    Entry* entry_ = nullptr;
  };

  // KV blocks of a prompt that could be shared: whole ones, without its last token, which has to be
  // computed for its logits.
  static int64_t blocks_of(int64_t prompt_tokens) { return (prompt_tokens - 1) / kKvBlockRows; }

  struct Found {
    Entry* entry = nullptr;        // The last one; null: none
    int64_t blocks = 0;            // Up to its end
    int64_t used_blocks = 0;       // Of these, those that some sequence uses now
    int64_t computing_blocks = 0;  // Behind these: those that a sequence computes now
  };
  // The longest beginning of the prompt that has been computed. Cuts an entry in two where the
  // prompt leaves it.
  Found find(const CacheSalt& salt, std::span<const int32_t> prompt);

  // Adds pages for the next `blocks` KV blocks of the prompt behind what find() has found, which
  // whoever gets them computes. Empty: there is no room for them (evict() may make some), or
  // another sequence computes the same.
  Use extend(const CacheSalt& salt, std::span<const int32_t> prompt, const Found& found,
             int64_t blocks);

  // The first `blocks` KV blocks of what it uses have been computed, so that others find them:
  // where memory has run out, not before all of them are.
  void computed(const Use& use, int64_t blocks);

  // Removes the entry that was used least recently, of those that no sequence uses. False: none.
  // Allocates nothing.
  bool evict();

  // Bytes of all entries, and of those that sequences use.
  uint64_t bytes() const { return static_cast<uint64_t>(blocks_) * cache_.page_bytes(); }
  uint64_t used_bytes() const { return static_cast<uint64_t>(used_blocks_) * cache_.page_bytes(); }
  uint64_t unused_bytes() const { return bytes() - used_bytes(); }

  void verify() const;  // The counts are right, and no entry lacks its parent.

 private:
  using Block = std::array<int32_t, kKvBlockRows>;
  static Block block_at(std::span<const int32_t> tokens, int64_t block);

  using Entries = std::map<Block, std::unique_ptr<Entry>>;  // By their first block

  void hold(Entry* entry);
  void let_go(Entry* entry);
  void remove(Entry* entry);
  Entry* cut(Entry* entry, int64_t blocks);
  Entries* behind(const CacheSalt& salt, Entry* entry);

  KvCache& cache_;
  std::map<CacheSalt, Entries> first_;  // By salt
  // In the order in which the last use of each ended: an entry comes after those behind it.
  std::list<Entry*> unused_;
  int64_t blocks_ = 0, used_blocks_ = 0;
};

}  // namespace spillway
