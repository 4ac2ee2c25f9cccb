#include "scheduler/whole_beginnings.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace spillway {

namespace {

bool used(const WholeBeginnings::Use& beginning) {
  return beginning.use_count() > 1;
}

}  // namespace

WholeBeginnings::~WholeBeginnings() {
  while (evict()) {
  }
  SPILLWAY_CHECK(all_.empty());
}

WholeBeginnings::Found WholeBeginnings::find(const CacheSalt& salt, std::span<const int32_t> prompt,
                                             int64_t blocks_max, bool scored) {
  Found found;
  auto best = all_.end();
  for (auto it = all_.begin(); it != all_.end(); ++it) {
    const Beginning& one = **it;
    if (one.salt != salt || one.blocks() > blocks_max || (scored && !one.scored())) continue;
    if (!std::equal(one.tokens.begin(), one.tokens.end(), prompt.begin())) continue;
    if (!one.computed) {
      if (used(*it)) found.computing_blocks = std::max(found.computing_blocks, one.blocks());
    } else if (best == all_.end() || one.blocks() > (*best)->blocks()) {
      best = it;
    }
  }
  if (best == all_.end()) return found;
  all_.splice(all_.end(), all_, best);
  found.beginning = *best;
  return found;
}

WholeBeginnings::Use WholeBeginnings::add(const CacheSalt& salt, std::span<const int32_t> prompt,
                                          int64_t blocks, const KvBudget& budget) {
  auto added = std::make_shared<Beginning>();
  const auto tokens = prompt.first(static_cast<size_t>(blocks * kKvBlockRows));
  added->salt = salt;
  added->tokens.assign(tokens.begin(), tokens.end());
  std::list<Use> node{added};
  auto pages = cache_.reserve_pages(blocks, needs_scores(budget) ? budget : KvBudget(),
                                    static_cast<int64_t>(prompt.size()));
  if (!pages) return {};
  added->pages = std::move(*pages);
  all_.splice(all_.end(), node);
  return added;
}

uint64_t WholeBeginnings::bytes_for(int64_t blocks, const KvBudget& budget, int64_t prompt) const {
  const uint64_t rows = static_cast<uint64_t>(blocks) * cache_.page_bytes();
  if (!needs_scores(budget)) return rows;
  const KvStateLayout state{cache_.layout().heads, budget};
  return rows + static_cast<uint64_t>(cache_.layers().count) * state.chunked_bytes(prompt);
}

bool WholeBeginnings::evict() {
  auto unused = std::find_if(all_.begin(), all_.end(),
                             [](const Use& one) { return !used(one) && !one->computed; });
  if (unused == all_.end()) {
    unused = std::find_if(all_.begin(), all_.end(), [](const Use& one) { return !used(one); });
  }
  if (unused == all_.end()) return false;
  cache_.release((*unused)->pages);
  all_.erase(unused);
  return true;
}

uint64_t WholeBeginnings::bytes_of(const Beginning& beginning) const {
  uint64_t bytes = static_cast<uint64_t>(beginning.blocks()) * cache_.page_bytes();
  for (const KvRun& state : beginning.pages.states) bytes += state.bytes;
  return bytes;
}

uint64_t WholeBeginnings::bytes() const {
  uint64_t bytes = 0;
  for (const Use& one : all_) bytes += bytes_of(*one);
  return bytes;
}

uint64_t WholeBeginnings::used_bytes() const {
  uint64_t bytes = 0;
  for (const Use& one : all_) {
    if (used(one)) bytes += bytes_of(*one);
  }
  return bytes;
}

}  // namespace spillway
