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

}  // namespace

KvFeed::KvFeed(KvCache& cache, SpillStager* stager, Trace* trace)
    : cache_(cache), stager_(stager), trace_(trace) {
  if (trace_ != nullptr) track_ = trace_->track("wait for KV cache");
  // The state, the step's own block and one for each head.
  changes_.reserve(static_cast<size_t>(cache.layout().heads) + 2);
}

void KvFeed::begin_sweep(std::span<const SweepItem> items, std::span<const MicroBatch> batches) {
  items_ = items;
  failed_.assign(items.size(), Status());
  wait_seconds_ = 0;
  first_use_ = 0;
  staged_.clear();
  if (stager_ == nullptr) return;
  uses_.clear();
  const int64_t layers = items.empty() ? 0 : items.front().kv->layers;
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const MicroBatch& batch : batches) {
      for (const SweepItem& item : items.subspan(batch.first_item, batch.items)) {
        if (!item.kv->on_disk(layer)) continue;
        uses_.push_back(
            cache_.use(*item.kv, layer, item.position, static_cast<int64_t>(item.tokens.size())));
      }
    }
  }
  stager_->begin(uses_);
}

void KvFeed::begin(int64_t layer, const MicroBatch& batch) {
  first_use_ += staged_.size();
  layer_ = layer;
  resident_.clear();
  staged_.clear();
  ready_.clear();
  next_staged_ = finished_staged_ = 0;
  int64_t row = 0;
  for (size_t i = batch.first_item; i < batch.first_item + batch.items; ++i) {
    const SweepItem& item = items_[i];
    const auto tokens = static_cast<int64_t>(item.tokens.size());
    AttentionItem attention{row, tokens, item.position, nullptr, item.kv->budget, nullptr};
    row += tokens;
    if (item.kv->on_disk(layer)) {
      staged_.push_back({i, attention, {}});
    } else if (failed_[i].ok()) {
      resident_.push_back(at(attention, cache_.layer(*item.kv, layer)));
    }
  }
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
    // What is there goes together; what is not is waited for only when nothing else is.
    if (!ready_.empty() && !stager_->ready(first_use_ + next_staged_)) break;
    take(staged_[next_staged_]);
    if (ready_.empty()) finish_handed_out();  // It failed: later ones may need its room.
  }
  return ready_;
}

void KvFeed::take(Staged& staged) {
  const double start = steady_seconds();
  const Result<std::byte*> memory = stager_->wait(first_use_ + next_staged_++);
  const double end = steady_seconds();
  wait_seconds_ += end - start;
  if (trace_ != nullptr && end - start > kWaitShownSeconds) {
    trace_->span(track_, "wait for KV cache", start, end, "layer", layer_);
  }
  Status& failed = failed_[staged.item];
  if (failed.ok()) failed = memory.status();
  if (!failed.ok()) return;
  staged.layer = cache_.staged_layer(*items_[staged.item].kv, memory.value());
  ready_.push_back(at(staged.attention, staged.layer));
}

// On the CPU the work has been done by now.
void KvFeed::finish_handed_out() {
  for (; finished_staged_ < next_staged_; ++finished_staged_) {
    const Staged& staged = staged_[finished_staged_];
    const SweepItem& item = items_[staged.item];
    changes_.clear();
    if (failed_[staged.item].ok()) {
      cache_.find_changes(*item.kv, staged.layer, item.position,
                          static_cast<int64_t>(item.tokens.size()), &changes_);
    }
    stager_->finish(first_use_ + finished_staged_, changes_);
  }
}

void KvFeed::abandon() {
  staged_.clear();
  first_use_ = 0;
  if (stager_ != nullptr) stager_->abandon();
}

}  // namespace spillway
