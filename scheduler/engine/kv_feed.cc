#include "scheduler/engine/kv_feed.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"

namespace spillway {

namespace {

AttentionItem at(AttentionItem item, const KvCache::Layer& layer) {
  item.kv = layer.rows;
  item.state = layer.state;
  return item;
}

// Whether its rows are those of a beginning in pages, and its own cache is left alone.
bool computes_beginning(const SweepItem& item) {
  return !item.is_step() && item.position < item.kv->beginning.positions;
}

// The rows of a beginning are computed as a chunk of the prompt, all of which are kept; with the
// state of a budget that goes by scores, where there is one.
AttentionItem in_pages(AttentionItem item, const KvSequence::Beginning::Layer& pages) {
  item.kv = KvBlocks(pages.table.data());
  item.state = pages.state;
  if (pages.state == nullptr) item.budget = {};
  return item;
}

}  // namespace

KvFeed::KvFeed(KvCache& cache, SpillStager* stager, DeviceRing* ring, bool host_attends,
               Trace* trace)
    : cache_(cache), stager_(stager), ring_(ring), host_attends_(host_attends), trace_(trace) {
  if (trace_ != nullptr) track_ = trace_->track("wait for KV cache");
  // Ranges: the state, the step's own KV block and one for each head.
  changes_.reserve(static_cast<size_t>(cache.layout().heads) + 2);
}

void KvFeed::begin_sweep(std::span<const SweepItem> items, std::span<const MicroBatch> batches) {
  items_ = items;
  failed_.assign(items.size(), Status());
  wait_seconds_ = 0;
  next_use_ = 0;
  staged_.clear();
  if (stager_ == nullptr) return;
  uses_.swap(last_uses_);  // The stager may read the last sweep's until begin().
  uses_.clear();
  const LayerRange layers = items.empty() ? LayerRange() : items.front().kv->layers;
  for (int64_t layer = layers.first; layer < layers.end(); ++layer) {
    for (const MicroBatch& batch : batches) {
      for (const SweepItem& item : items.subspan(batch.first_item, batch.items)) {
        if (!item.kv->on_disk(layer) || computes_beginning(item)) continue;
        cache_.add_uses(*item.kv, layer, item.position, static_cast<int64_t>(item.tokens.size()),
                        &uses_);
      }
    }
  }
  const size_t sure = uses_.size();
  prefetch_next_sweep(items, layers);
  stager_->begin(uses_, uses_.size() - sure);
}

// Adds speculative uses: most sequences continue, and the next sweep begins with their first layer
// on disk.
void KvFeed::prefetch_next_sweep(std::span<const SweepItem> items, const LayerRange& layers) {
  const size_t sure = uses_.size();
  for (int64_t layer = layers.first; layer < layers.end() && uses_.size() == sure; ++layer) {
    for (const SweepItem& item : items) {
      const int64_t position = item.position + static_cast<int64_t>(item.tokens.size());
      // The next chunk of a prompt is as long as the next sweep has room for.
      const bool in_prompt = !item.is_step() && !item.ends_prompt();
      if (!item.kv->on_disk(layer) || position >= item.kv->positions() || in_prompt) continue;
      cache_.add_uses(*item.kv, layer, position, 1, &uses_);
    }
  }
}

void KvFeed::begin(int64_t layer, const MicroBatch& batch) {
  layer_ = layer;
  resident_.clear();
  host_items_.clear();
  staged_.clear();
  parts_.clear();
  tables_.clear();
  ready_.clear();
  next_staged_ = finished_staged_ = 0;
  int64_t row = 0;
  for (size_t i = batch.first_item; i < batch.first_item + batch.items; ++i) {
    const SweepItem& item = items_[i];
    const auto tokens = static_cast<int64_t>(item.tokens.size());
    AttentionItem attention{.first_row = row,
                            .tokens = tokens,
                            .position = item.position,
                            .budget = item.kv->budget(layer),
                            .prompt = item.is_step() ? 0 : item.prompt_tokens(),
                            .layer = layer};
    row += tokens;
    const KvSequence::Beginning& beginning = item.kv->beginning;
    if (computes_beginning(item)) {
      resident_.push_back(in_pages(attention, item.kv->beginning_of(layer)));
      continue;
    }
    if (!item.is_step() && beginning.positions > 0) {
      const KvSequence::Beginning::Layer& pages = item.kv->beginning_of(layer);
      attention.beginning = KvBlocks(pages.table.data());
      if (attention.budget.scored() && !attention.budget.snaps()) {
        attention.beginning_scores = pages.scores;
        attention.beginning_scores_stride = beginning.scores_stride;
      }
    }
    const Tier tier = item.kv->tier(layer);
    if (tier == Tier::kDisk) {
      add_staged(i, attention);
    } else if (!failed_[i].ok()) {
      continue;
    } else if (tier == Tier::kDevice) {
      resident_.push_back(at(attention, cache_.layer(*item.kv, layer)));
    } else if (host_attends_ && item.is_step()) {
      host_items_.push_back(at(attention, cache_.layer(*item.kv, layer)));
    } else {
      add_staged(i, attention);
    }
  }
  // Enough that no table moves while attention reads it
  int64_t blocks = 0;
  for (const Part& part : parts_) blocks += part.blocks;
  for (const Staged& staged : staged_) blocks += items_[staged.item].kv->shared_blocks;
  tables_.reserve(static_cast<size_t>(blocks));
}

void KvFeed::add_staged(size_t item, const AttentionItem& attention) {
  const SweepItem& its = items_[item];
  const Tier tier = its.kv->tier(layer_);
  cache_.find_parts(*its.kv, layer_, its.position, static_cast<int64_t>(its.tokens.size()),
                    &found_);
  const bool disk = tier == Tier::kDisk;
  staged_.push_back({.item = item,
                     .attention = attention,
                     .tier = tier,
                     .use = next_use_,
                     .first_part = parts_.size(),
                     .parts = found_.size(),
                     .there = !disk});
  if (disk) next_use_ += found_.size();
  for (size_t run = 0; run < found_.size(); ++run) {
    parts_.push_back({found_[run], disk ? nullptr : cache_.run_at(*its.kv, layer_, run)});
  }
}

int64_t KvFeed::tokens(const Staged& staged) const {
  return static_cast<int64_t>(items_[staged.item].tokens.size());
}

std::span<const AttentionItem> KvFeed::next() {
  if (!resident_.empty()) {
    ready_.swap(resident_);
    resident_.clear();
    return ready_;
  }
  finish_handed_out();
  ready_.clear();
  while (next_staged_ < staged_.size()) {
    Staged& staged = staged_[next_staged_];
    // Returns all entries that have arrived; blocks only if none has.
    if (!ready_.empty() && !there(staged)) break;
    fetch(staged);
    if (failed_[staged.item].ok() && !upload(staged)) {
      // The entries returned now will free ring space when the next call finishes them.
      SPILLWAY_CHECK(!ready_.empty());
      break;
    }
    ++next_staged_;
    if (ready_.empty()) finish_handed_out();  // It failed: frees its memory for later ones
  }
  if (ring_ != nullptr && !ready_.empty()) ring_->arrive();
  return ready_;
}

bool KvFeed::there(const Staged& staged) {
  if (staged.there) return true;
  for (size_t i = 0; i < staged.parts; ++i) {
    if (!stager_->ready(staged.use + i)) return false;
  }
  return true;
}

// Waits until the item's bytes are in host memory, or it failed.
void KvFeed::fetch(Staged& staged) {
  if (staged.there) return;
  staged.there = true;
  const double start = steady_seconds();
  Status& failed = failed_[staged.item];
  for (size_t i = 0; i < staged.parts; ++i) {
    // The stager's ring may be held by uses whose write-back from the device is not finished.
    if (!stager_->ready(staged.use + i)) finish_write_backs(true);
    const Result<std::byte*> memory = stager_->wait(staged.use + i);
    if (failed.ok()) failed = memory.status();
    if (memory.ok()) parts_of(staged)[i].memory = memory.value();
  }
  const double end = steady_seconds();
  wait_seconds_ += end - start;
  if (trace_ != nullptr && end - start > kWaitShownSeconds) {
    trace_->span(track_, "wait for KV cache", start, end, "layer", layer_);
  }
}

// Brings the item's cache to where the kernels see it. False: the ring is full.
bool KvFeed::upload(Staged& staged) {
  const KvSequence& sequence = *items_[staged.item].kv;
  const bool in_blocks = sequence.kind(layer_).in_blocks();
  const std::span<const Part> parts = parts_of(staged);
  AttentionItem attention = staged.attention;
  const size_t first = tables_.size();
  // Shared blocks are resident, wherever the others come from.
  const std::vector<std::byte*>& table = sequence.place(layer_).table;
  tables_.insert(tables_.end(), table.begin(), table.begin() + sequence.shared_blocks);
  const auto add_blocks = [&](const Part& part, std::byte* at) {
    for (int64_t block = 0; block < part.blocks; ++block) {
      tables_.push_back(at + static_cast<size_t>(block) * cache_.layout().block_bytes());
    }
  };
  if (ring_ != nullptr && !parts.empty()) {
    copies_.clear();
    uint64_t bytes = 0;
    for (const Part& part : parts) {
      copies_.push_back({part.memory, bytes, part.filled});
      bytes += part.needed;
    }
    std::byte* memory = ring_->upload(copies_, bytes);
    if (memory == nullptr) {
      tables_.resize(first);
      return false;
    }
    staged.uploaded = true;
    attention = at(attention, KvCache::layer_at(sequence, layer_, memory));
    if (sequence.shared_blocks > 0) {
      for (const Part& part : parts) {
        add_blocks(part, memory);
        memory += part.needed;
      }
    }
  } else if (in_blocks) {
    for (const Part& part : parts) add_blocks(part, part.memory);
  } else {
    attention = at(attention, KvCache::layer_at(sequence, layer_, parts[0].memory));
  }
  if (tables_.size() > first) attention.kv = KvBlocks(tables_.data() + first);
  ready_.push_back(attention);
  return true;
}

// Finishes the entries returned by next(). Their work is queued; on the CPU it is done.
void KvFeed::finish_handed_out() {
  for (; finished_staged_ < next_staged_; ++finished_staged_) finish(staged_[finished_staged_]);
}

void KvFeed::finish(const Staged& staged) {
  const std::span<const Part> parts = parts_of(staged);
  if (ring_ == nullptr) return finish_uses(staged, parts);
  Event written_back;
  if (staged.uploaded) {
    const SweepItem& item = items_[staged.item];
    changes_.clear();
    if (item.position == 0 || item.ends_prompt() || staged.attention.budget.has_state()) {
      // Only the device knows which rows moved.
      const int64_t positions = item.position + tokens(staged);
      changes_.push_back({0, cache_.used_bytes(*item.kv, staged.attention.layer, positions,
                                               staged.tier == Tier::kDisk)});
    } else {
      find_changes(staged, parts[0].memory);  // It was uploaded: there are parts.
    }
    copies_.clear();
    for (const ByteRange& change : changes_) {
      for_parts(parts, change, [&](size_t i, const ByteRange& range, uint64_t before) {
        copies_.push_back(
            {parts[i].memory + range.from, before + range.from, range.to - range.from});
      });
    }
    written_back = ring_->write_back(copies_);
  }
  if (staged.tier != Tier::kDisk) return;
  write_backs_.push_back({staged, {parts.begin(), parts.end()}, written_back});
  finish_write_backs(false);
}

// Sets changes_ to what the layer changed of the item, whose bytes begin at `memory`.
void KvFeed::find_changes(const Staged& staged, std::byte* memory) {
  const SweepItem& item = items_[staged.item];
  const int64_t layer = staged.attention.layer;  // Write-backs outlive begin().
  cache_.find_changes(*item.kv, layer, KvCache::layer_at(*item.kv, layer, memory).state,
                      item.position, tokens(staged), &changes_);
}

template <class Changed>
void KvFeed::for_parts(std::span<const Part> parts, const ByteRange& range,
                       const Changed& part_changed) {
  uint64_t before = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const uint64_t from = std::max(range.from, before);
    const uint64_t to = std::min(range.to, before + parts[i].needed);
    if (from < to) part_changed(i, ByteRange{from - before, to - before}, before);
    before += parts[i].needed;
  }
}

// Finishes the stager's uses whose write-back from the device is done, in order.
void KvFeed::finish_write_backs(bool wait) {
  while (!write_backs_.empty() && (wait || write_backs_.front().written_back.done())) {
    const WriteBack& first = write_backs_.front();
    const Status status = first.written_back.wait();
    if (failed_[first.staged.item].ok()) failed_[first.staged.item] = status;
    finish_uses(first.staged, first.parts);
    write_backs_.pop_front();
  }
}

// Finishes an item's uses. REQUIRES: host memory has the bytes as the layer left them.
void KvFeed::finish_uses(const Staged& staged, std::span<const Part> parts) {
  if (parts.empty()) return;  // It needed nothing but shared blocks.
  changes_.clear();
  if (failed_[staged.item].ok()) find_changes(staged, parts[0].memory);
  uint64_t before = 0;
  for (size_t use = 0; use < parts.size(); ++use) {
    part_changes_.clear();
    for (const ByteRange& change : changes_) {
      const uint64_t from = std::max(change.from, before);
      const uint64_t to = std::min(change.to, before + parts[use].needed);
      if (from < to) part_changes_.push_back({from - before, to - before});
    }
    before += parts[use].needed;
    stager_->finish(staged.use + use, part_changes_);
  }
}

Status KvFeed::end_sweep() {
  finish_write_backs(true);
  return ring_ == nullptr ? Status() : ring_->sync();
}

void KvFeed::abandon() {
  staged_.clear();
  write_backs_.clear();
  next_use_ = 0;
  if (ring_ != nullptr) ring_->clear();
  if (stager_ != nullptr) stager_->abandon();
}

}  // namespace spillway
