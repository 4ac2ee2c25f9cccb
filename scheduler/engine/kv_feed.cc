#include "scheduler/engine/kv_feed.h"

#include "kernels/base/check.h"
#include "kernels/base/clock.h"

namespace spillway {

namespace {

AttentionItem at(AttentionItem item, const KvCache::Layer& layer) {
  item.kv = layer.rows;
  item.state = layer.state;
  return item;
}

std::byte* layer_address(const KvCache::Layer& layer) {
  return layer.state != nullptr ? layer.state : layer.rows;
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
        if (!item.kv->on_disk(layer)) continue;
        uses_.push_back(
            cache_.use(*item.kv, layer, item.position, static_cast<int64_t>(item.tokens.size())));
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
      const bool in_prompt = position < item.kv->chunked_prompt;
      if (!item.kv->on_disk(layer) || position >= item.kv->rows || in_prompt) continue;
      uses_.push_back(cache_.use(*item.kv, layer, position, 1));
    }
  }
}

void KvFeed::begin(int64_t layer, const MicroBatch& batch) {
  layer_ = layer;
  resident_.clear();
  host_items_.clear();
  staged_.clear();
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
    const Tier tier = item.kv->tier(layer);
    if (tier == Tier::kDisk) {
      staged_.push_back({i, attention, tier, next_use_++});
    } else if (!failed_[i].ok()) {
      continue;
    } else if (tier == Tier::kDevice) {
      resident_.push_back(at(attention, cache_.layer(*item.kv, layer)));
    } else if (host_attends_ && item.is_step()) {
      host_items_.push_back(at(attention, cache_.layer(*item.kv, layer)));
    } else {
      std::byte* address = layer_address(cache_.layer(*item.kv, layer));
      staged_.push_back({i, attention, tier, 0, address});
    }
  }
}

int64_t KvFeed::tokens(const Staged& staged) const {
  return static_cast<int64_t>(items_[staged.item].tokens.size());
}

// The item's layer when its bytes, in the layout of its tier, are at `memory`.
KvCache::Layer KvFeed::layer_at(const Staged& staged, std::byte* memory) const {
  const KvSequence& sequence = *items_[staged.item].kv;
  const int64_t layer = staged.attention.layer;  // Write-backs outlive begin().
  if (staged.tier == Tier::kDisk) return cache_.staged_layer(sequence, layer, memory);
  const uint64_t state = sequence.kind(layer).state_bytes;
  return {state == 0 ? nullptr : memory, memory + state};
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
  return staged.memory != nullptr || stager_->ready(staged.use);
}

// Waits until the item's bytes are in host memory, or it failed.
void KvFeed::fetch(Staged& staged) {
  if (staged.memory != nullptr) return;
  const double start = steady_seconds();
  // The stager's ring may be held by uses whose write-back from the device is not finished.
  if (!stager_->ready(staged.use)) finish_write_backs(true);
  const Result<std::byte*> memory = stager_->wait(staged.use);
  const double end = steady_seconds();
  wait_seconds_ += end - start;
  if (trace_ != nullptr && end - start > kWaitShownSeconds) {
    trace_->span(track_, "wait for KV cache", start, end, "layer", layer_);
  }
  Status& failed = failed_[staged.item];
  if (failed.ok()) failed = memory.status();
  if (failed.ok()) staged.memory = memory.value();
}

// Uploads the item's cache to where the kernels see it. False: the ring is full.
bool KvFeed::upload(Staged& staged) {
  std::byte* memory = staged.memory;
  if (ring_ != nullptr) {
    const SweepItem& item = items_[staged.item];
    const bool disk = staged.tier == Tier::kDisk;
    const uint64_t filled =
        item.position == 0 ? 0 : cache_.used_bytes(*item.kv, layer_, item.position, disk);
    memory =
        ring_->upload(staged.memory, filled,
                      cache_.needed_bytes(*item.kv, layer_, item.position, tokens(staged), disk));
    if (memory == nullptr) return false;
    staged.uploaded = true;
  }
  ready_.push_back(at(staged.attention, layer_at(staged, memory)));
  return true;
}

// Finishes the entries returned by next(). Their work is queued; on the CPU it is done.
void KvFeed::finish_handed_out() {
  for (; finished_staged_ < next_staged_; ++finished_staged_) finish(staged_[finished_staged_]);
}

void KvFeed::finish(const Staged& staged) {
  if (ring_ == nullptr) return finish_use(staged);
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
      find_changes(staged);
    }
    written_back = ring_->write_back(staged.memory, changes_);
  }
  if (staged.tier != Tier::kDisk) return;
  write_backs_.push_back({staged, written_back});
  finish_write_backs(false);
}

// Sets changes_ to what the layer changed of the item.
void KvFeed::find_changes(const Staged& staged) {
  const SweepItem& item = items_[staged.item];
  cache_.find_changes(*item.kv, staged.attention.layer, layer_at(staged, staged.memory),
                      item.position, tokens(staged), &changes_);
}

// Finishes the stager's uses whose write-back from the device is done, in order.
void KvFeed::finish_write_backs(bool wait) {
  while (!write_backs_.empty() && (wait || write_backs_.front().written_back.done())) {
    const WriteBack& first = write_backs_.front();
    const Status status = first.written_back.wait();
    if (failed_[first.staged.item].ok()) failed_[first.staged.item] = status;
    finish_use(first.staged);
    write_backs_.pop_front();
  }
}

// Finishes a use. REQUIRES: host memory has the bytes as the layer left them.
void KvFeed::finish_use(const Staged& staged) {
  changes_.clear();
  if (failed_[staged.item].ok()) find_changes(staged);
  stager_->finish(staged.use, changes_);
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
