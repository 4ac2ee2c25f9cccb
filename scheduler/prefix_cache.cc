#include "scheduler/prefix_cache.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/base/check.h"

namespace spillway {

struct PrefixCache::Entry {
  CacheSalt salt;
  Entry* parent = nullptr;
  std::vector<int32_t> tokens;  // Of its blocks
  KvPages pages;
  int64_t end = 0;   // In blocks, from the beginning of the prompt
  int64_t uses = 0;  // By Use, and one for each entry behind it that has any
  bool computed = false;
  Entries behind;
  // While it is used, its node of unused_, which so never allocates; and where that is, there or
  // here
  std::list<Entry*> node;
  std::list<Entry*>::iterator at;

  void make_node() { at = node.insert(node.begin(), this); }
};

PrefixCache::Use::Use(PrefixCache& cache, Entry* entry) : cache_(&cache), entry_(entry) {
  if (entry_ != nullptr) cache.hold(entry_);
}

PrefixCache::Use::Use(Use&& other) noexcept
    : cache_(other.cache_), entry_(std::exchange(other.entry_, nullptr)) {}

PrefixCache::Use& PrefixCache::Use::operator=(Use&& other) noexcept {
  if (this == &other) return *this;
  reset();
  cache_ = other.cache_;
  entry_ = std::exchange(other.entry_, nullptr);
  return *this;
}

void PrefixCache::Use::reset() {
  Entry* const entry = std::exchange(entry_, nullptr);
  if (entry != nullptr) cache_->let_go(entry);
}

int64_t PrefixCache::Use::blocks() const {
  return entry_ == nullptr ? 0 : entry_->end;
}

std::vector<const KvPages*> PrefixCache::Use::pages() const {
  std::vector<const KvPages*> pages;
  for (const Entry* entry = entry_; entry != nullptr; entry = entry->parent) {
    pages.push_back(&entry->pages);
  }
  std::reverse(pages.begin(), pages.end());
  return pages;
}

PrefixCache::PrefixCache(KvCache& cache) : cache_(cache) {}

PrefixCache::~PrefixCache() {
  while (evict()) {
  }
  SPILLWAY_CHECK(blocks_ == 0);  // No use outlives the cache.
}

PrefixCache::Block PrefixCache::block_at(std::span<const int32_t> tokens, int64_t block) {
  Block found;
  std::copy_n(tokens.begin() + block * kKvBlockRows, kKvBlockRows, found.begin());
  return found;
}

// The entries behind one, or those of a salt from which prompts begin; null: none.
PrefixCache::Entries* PrefixCache::behind(const CacheSalt& salt, Entry* entry) {
  if (entry != nullptr) return &entry->behind;
  const auto found = first_.find(salt);
  return found == first_.end() ? nullptr : &found->second;
}

PrefixCache::Found PrefixCache::find(const CacheSalt& salt, std::span<const int32_t> prompt) {
  Found found;
  const int64_t most = blocks_of(static_cast<int64_t>(prompt.size()));
  while (found.blocks < most) {
    Entries* const entries = behind(salt, found.entry);
    if (entries == nullptr) break;
    const auto next = entries->find(block_at(prompt, found.blocks));
    if (next == entries->end()) break;
    Entry* entry = next->second.get();
    const auto rest = prompt.subspan(static_cast<size_t>(found.blocks * kKvBlockRows));
    const auto same =
        std::mismatch(entry->tokens.begin(), entry->tokens.end(), rest.begin(), rest.end()).first -
        entry->tokens.begin();
    const int64_t blocks = std::min<int64_t>(same / kKvBlockRows, most - found.blocks);
    if (!entry->computed) {
      found.computing_blocks = blocks;
      break;
    }
    const bool whole = blocks == entry->pages.blocks;
    if (!whole) entry = cut(entry, blocks);
    found.entry = entry;
    found.blocks += blocks;
    if (entry->uses > 0) found.used_blocks = found.blocks;
    if (!whole) break;
  }
  return found;
}

// Cuts an entry in two and returns a new one of its first blocks: the old one goes on behind it,
// for all that use it.
PrefixCache::Entry* PrefixCache::cut(Entry* entry, int64_t blocks) {
  Entries& beside = *behind(entry->salt, entry->parent);
  auto first = std::make_unique<Entry>();
  const auto tokens = entry->tokens.begin() + blocks * kKvBlockRows;
  first->tokens.assign(entry->tokens.begin(), tokens);
  std::vector<int32_t> rest(tokens, entry->tokens.end());
  std::unique_ptr<Entry>& behind_first = first->behind[block_at(rest, 0)];
  first->make_node();
  std::unique_ptr<Entry>& place = beside.at(block_at(entry->tokens, 0));
  KvPages pages = entry->pages.split_off(blocks, cache_.layout().block_bytes());
  // All memory is there.
  first->salt = entry->salt;
  first->parent = entry->parent;
  first->pages = std::exchange(entry->pages, std::move(pages));
  first->end = entry->end - entry->pages.blocks;
  first->computed = true;
  first->uses = entry->uses > 0 ? 1 : 0;
  entry->tokens = std::move(rest);
  entry->parent = first.get();
  if (entry->uses == 0) {
    unused_.splice(std::next(entry->at), first->node);
  }
  std::swap(place, first);
  std::swap(behind_first, first);
  return place.get();
}

PrefixCache::Use PrefixCache::extend(const CacheSalt& salt, std::span<const int32_t> prompt,
                                     const Found& found, int64_t blocks) {
  if (blocks <= 0 || found.computing_blocks > 0) return {};
  auto entry = std::make_unique<Entry>();
  const auto tokens = prompt.subspan(static_cast<size_t>(found.blocks * kKvBlockRows),
                                     static_cast<size_t>(blocks * kKvBlockRows));
  entry->tokens.assign(tokens.begin(), tokens.end());
  entry->make_node();
  entry->salt = salt;
  entry->parent = found.entry;
  entry->end = found.blocks + blocks;
  std::optional<KvPages> pages = cache_.reserve_pages(blocks);
  if (!pages) return {};
  entry->pages = std::move(*pages);
  Entry* const added = entry.get();
  try {
    Entries& beside = found.entry != nullptr ? found.entry->behind : first_[salt];
    const bool fresh = beside.emplace(block_at(tokens, 0), std::move(entry)).second;
    SPILLWAY_CHECK(fresh);
  } catch (...) {
    cache_.release(entry->pages);
    throw;
  }
  blocks_ += blocks;
  return Use(*this, added);
}

void PrefixCache::computed(const Use& use, int64_t blocks) {
  Entry* const entry = use.entry_;
  if (entry == nullptr || entry->computed) return;
  const int64_t there = blocks - (entry->end - entry->pages.blocks);
  if (there >= entry->pages.blocks) {
    entry->computed = true;
  } else if (there > 0) {
    try {
      cut(entry, there);
    } catch (const std::bad_alloc&) {  // It is whole still.
    }
  }
}

void PrefixCache::hold(Entry* entry) {
  for (; entry != nullptr && entry->uses++ == 0; entry = entry->parent) {
    used_blocks_ += entry->pages.blocks;
    if (entry->node.empty()) entry->node.splice(entry->node.begin(), unused_, entry->at);
  }
}

void PrefixCache::let_go(Entry* entry) {
  Entry* const last = entry;
  for (; entry != nullptr && --entry->uses == 0; entry = entry->parent) {
    used_blocks_ -= entry->pages.blocks;
    unused_.splice(unused_.end(), entry->node);
  }
  if (!last->computed && last->uses == 0) remove(last);
}

bool PrefixCache::evict() {
  if (unused_.empty()) return false;
  remove(unused_.front());
  return true;
}

// REQUIRES: unused, and no entry is behind it.
void PrefixCache::remove(Entry* entry) {
  SPILLWAY_CHECK(entry->uses == 0 && entry->behind.empty());
  unused_.erase(entry->at);
  blocks_ -= entry->pages.blocks;
  cache_.release(entry->pages);
  const CacheSalt salt = entry->salt;
  const bool at_first = entry->parent == nullptr;
  Entries& beside = *behind(salt, entry->parent);
  beside.erase(block_at(entry->tokens, 0));
  if (at_first && beside.empty()) first_.erase(salt);
}

void PrefixCache::verify() const {
  int64_t blocks = 0, used = 0, unused = 0;
  const auto walk = [&](const auto& self, const Entries& entries, const Entry* parent) -> void {
    int64_t uses = 0;
    for (const auto& [first, entry] : entries) {
      SPILLWAY_CHECK(entry->parent == parent && first == block_at(entry->tokens, 0));
      SPILLWAY_CHECK(entry->end == (parent == nullptr ? 0 : parent->end) + entry->pages.blocks);
      SPILLWAY_CHECK(static_cast<int64_t>(entry->tokens.size()) ==
                     entry->pages.blocks * kKvBlockRows);
      SPILLWAY_CHECK(entry->computed || (entry->uses == 1 && entry->behind.empty()));
      blocks += entry->pages.blocks;
      if (entry->uses > 0) {
        used += entry->pages.blocks;
        ++uses;
      } else {
        ++unused;
      }
      self(self, entry->behind, entry.get());
    }
    SPILLWAY_CHECK(parent == nullptr || parent->uses >= uses);
  };
  for (const auto& [salt, entries] : first_) walk(walk, entries, nullptr);
  SPILLWAY_CHECK(blocks == blocks_ && used == used_blocks_);
  SPILLWAY_CHECK(unused == static_cast<int64_t>(unused_.size()));
}

}  // namespace spillway
