#include "scheduler/kv_room.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "scheduler/stages/joint_sweep.h"

namespace spillway {

namespace {

// Beginnings lie in the device's memory, in the blocks that attention reads there.
uint64_t prefix_bytes_max(const Engine& engine, uint64_t wanted) {
  const bool possible =
      engine.shape().layers_with_window() == 0 && !engine.options().host_attention;
  return possible ? std::min(wanted, engine.kv().memory_bytes()) : 0;
}

bool keeps_all(const Sequence& sequence) {
  return sequence.promise().budget.full();
}

// The most blocks of a beginning behind which a prompt under a limited rule can go on: under snap
// the queries that count are its own.
int64_t beginning_blocks_max(const Sequence& sequence) {
  const int64_t prompt = sequence.prompt_tokens(), blocks = PrefixCache::blocks_of(prompt);
  const KvBudget& budget = sequence.promise().budget;
  return budget.snaps() ? std::min(blocks, budget.scored_from(prompt) / kKvBlockRows) : blocks;
}

// Whether a beginning of `blocks` is so much longer than one of `than` that it is worth computing.
bool much_longer(int64_t blocks, int64_t than) {
  return blocks - than >= std::max(kBeginningBlocks, than / 4);
}

}  // namespace

KvRoom::KvRoom(Engine& engine, uint64_t prefix_bytes, OtherRanks* others)
    : engine_(engine),
      others_(others),
      needs_(engine.kv(),
             engine.kv().aside_bytes() > 0 && engine.shape().layers_with_window() == 0),
      prefix_bytes_max_(prefix_bytes_max(engine, prefix_bytes)),
      prefixes_(engine.kv()),
      whole_(engine.kv()) {
  SPILLWAY_CHECK(others == nullptr || (prefix_bytes == 0 && !needs_.grow()));
}

uint64_t KvRoom::promised_max() const {
  return std::max(engine_.kv().total_bytes(), engine_.kv().aside_bytes());
}

// Whoever wants the logits of the whole prompt computes it; and a limited rule's prompt in chunks
// keeps all its rows until its end, in a cache of its own that is as large as that.
bool KvRoom::may_share(const Sequence& sequence) const {
  return shares() && !sequence.wants_prompt_logits() && !sequence.alone() &&
         (keeps_all(sequence) || sequence.promise().chunks.prompt == 0);
}

KvRoom::Offer KvRoom::offer(const Sequence& next, int64_t rest_max) {
  Offer offer{.bytes = needs_.likely_bytes(next)};
  if (!may_share(next)) return offer;
  keeps_all(next) ? offer_prefix(next, &offer) : offer_beginning(next, rest_max, &offer);
  return offer;
}

void KvRoom::offer_prefix(const Sequence& next, Offer* offer) {
  const PrefixCache::Found found = prefixes_.find(next.salt(), next.prompt());
  offer->cached = found.blocks * kKvBlockRows;
  offer->bytes -= std::min(offer->bytes, blocks_bytes(found.used_blocks));
  const int64_t left = next.prompt_tokens() - offer->cached;
  offer->better_later = 2 * found.computing_blocks * kKvBlockRows >= left;
}

void KvRoom::offer_beginning(const Sequence& next, int64_t rest_max, Offer* offer) {
  const WholeBeginnings::Found found = find_beginning(next);
  const int64_t there = found.beginning == nullptr ? 0 : found.beginning->blocks();
  offer->cached = there * kKvBlockRows;
  offer->better_later = much_longer(found.computing_blocks, there);
  if (offer->better_later) return;
  const int64_t seen = seen_.seen(next.salt(), next.prompt(), beginning_blocks_max(next));
  if (!much_longer(seen, there)) return;
  if (next.prompt_tokens() - seen * kKvBlockRows > rest_max) return;
  offer->begins = seen * kKvBlockRows;
  offer->bytes += blocks_bytes(seen);
}

// Whether beginnings may take so many bytes more, once others are gone.
bool KvRoom::within_prefix_limit(uint64_t bytes) {
  if (prefix_used_bytes() + bytes > prefix_bytes_max_) return false;
  while (prefix_bytes() > prefix_bytes_max_ - bytes) {
    if (!evict()) return false;
  }
  return true;
}

// Pages for what the sequence computes of its prompt. Where they could lie on other tiers, only for
// what an earlier prompt began with, too.
PrefixCache::Use KvRoom::extend(const Sequence& next, const PrefixCache::Found& found) {
  int64_t blocks = PrefixCache::blocks_of(next.prompt_tokens());
  if (has_tiers()) {
    blocks = seen_.seen(next.salt(), next.prompt(), blocks);
  }
  blocks -= found.blocks;
  if (blocks <= 0 || found.computing_blocks > 0) return {};
  const PrefixCache::Use hold(prefixes_, found.entry);
  const uint64_t bytes = blocks_bytes(blocks);
  if (!within_prefix_limit(bytes)) return {};
  for (;;) {
    PrefixCache::Use use = prefixes_.extend(next.salt(), next.prompt(), found, blocks);
    if (!use.empty() || bytes > device_free_bytes() || !evict()) return use;
  }
}

WholeBeginnings::Found KvRoom::find_beginning(const Sequence& next) {
  const KvBudget& budget = next.promise().budget;
  return whole_.find(next.salt(), next.prompt(), beginning_blocks_max(next),
                     WholeBeginnings::needs_scores(budget));
}

// Pages for the first tokens of a prompt, which the sequence computes before its rest.
WholeBeginnings::Use KvRoom::add_beginning(const Sequence& next, int64_t tokens) {
  const int64_t blocks = tokens / kKvBlockRows;
  const KvBudget& budget = next.promise().budget;
  const uint64_t bytes = whole_.bytes_for(blocks, budget, next.prompt_tokens());
  if (!within_prefix_limit(bytes)) return {};
  for (;;) {
    WholeBeginnings::Use use = whole_.add(next.salt(), next.prompt(), blocks, budget);
    if (use != nullptr || bytes > device_free_bytes() || !evict()) return use;
  }
}

// Room in the engine's cache, and in those of the stages before it.
Result<std::unique_ptr<KvSequence>> KvRoom::reserve(const SequenceKv& promise, int64_t rows_now,
                                                    std::span<const KvPages* const> beginning) {
  return reserve_on_all(engine_, others_, promise.positions, promise.budget, promise.chunks,
                        rows_now, beginning, vacant());
}

// Reserves a sequence's own cache, and admits it.
Status KvRoom::reserve_and_admit(Sequence& next, PrefixCache::Use prefix, int64_t cached,
                                 uint64_t number, double now) {
  const SequenceKv& promise = next.promise();
  const std::vector<const KvPages*> pages = prefix.pages();
  const int64_t first = needs_.positions_at_first(next);
  const int64_t rows = (first > 0 ? first : promise.positions) - prefix.blocks() * kKvBlockRows;
  const uint64_t bytes = engine_.kv().sequence_bytes(rows, promise.budget, promise.chunks);
  for (;;) {
    auto kv = reserve(promise, first, pages);
    if (kv.ok()) {
      next.admit(std::move(kv).value(), std::move(prefix), cached, number, now);
      return {};
    }
    if (kv.status().code() != Code::kCapacity || bytes > free_bytes() || !evict()) {
      return kv.status();
    }
  }
}

Status KvRoom::admit_behind_prefix(Sequence& next, uint64_t number, double now) {
  const PrefixCache::Found found = prefixes_.find(next.salt(), next.prompt());
  const int64_t cached = found.blocks * kKvBlockRows;
  PrefixCache::Use known(prefixes_, found.entry);
  PrefixCache::Use longer = extend(next, found);
  if (!longer.empty()) {
    const Status status = reserve_and_admit(next, std::move(longer), cached, number, now);
    if (status.code() != Code::kCapacity) return status;
  }
  return reserve_and_admit(next, std::move(known), cached, number, now);
}

Status KvRoom::admit_behind_beginning(Sequence& next, const Offer& offer, uint64_t number,
                                      double now) {
  WholeBeginnings::Use use =
      offer.begins > 0 ? add_beginning(next, offer.begins) : find_beginning(next).beginning;
  if (use == nullptr && offer.begins > 0) {
    return {Code::kCapacity, "no room for a beginning that others share"};
  }
  SPILLWAY_RETURN_IF_ERROR(
      reserve_and_admit(next, {}, offer.begins > 0 ? 0 : offer.cached, number, now));
  if (use == nullptr) return {};
  engine_.kv().begin_behind(next.kv(), use->pages);
  if (offer.begins > 0) next.set_chunk(offer.begins);
  next.set_beginning(std::move(use));
  return {};
}

Status KvRoom::admit(Sequence& next, const Offer& offer, uint64_t number, double now) {
  if (!may_share(next)) return reserve_and_admit(next, {}, 0, number, now);
  const Status admitted = keeps_all(next) ? admit_behind_prefix(next, number, now)
                                          : admit_behind_beginning(next, offer, number, now);
  if (!admitted.ok()) return admitted;
  seen_.note(next.salt(), next.prompt(), PrefixCache::blocks_of(next.prompt_tokens()));
  prefix_queries_ += static_cast<uint64_t>(next.prompt_tokens());
  prefix_hits_ += static_cast<uint64_t>(next.found_cached());
  return {};
}

bool KvRoom::grow(Sequence& sequence, int64_t positions) {
  const KvSequence& kv = *sequence.kv();
  const int64_t more = std::max<int64_t>(0, positions - kv.positions());
  const int64_t on_device = kv.layers.count - kv.disk_layers() - kv.host_layers();
  const uint64_t bytes =
      static_cast<uint64_t>(kv_blocks(more) * on_device) * engine_.kv().layout().block_bytes();
  for (;;) {
    if (engine_.grow(*sequence.kv(), positions)) return true;
    // Only the device's memory gets more room when beginnings go.
    const bool helps = bytes > engine_.kv().memory_free_bytes() && bytes <= device_free_bytes();
    if (!helps || !evict()) return false;
  }
}

Status KvRoom::set_aside(Sequence& sequence) {
  SPILLWAY_RETURN_IF_ERROR(engine_.set_aside(sequence.kv_place(), sequence.cached()));
  sequence.prefix().reset();
  return {};
}

Status KvRoom::bring_back(Sequence& sequence) {
  const SequenceKv& promise = sequence.promise();
  PrefixCache::Use use;
  if (may_share(sequence)) {  // Only those that keep every row are set aside.
    use = PrefixCache::Use(prefixes_, prefixes_.find(sequence.salt(), sequence.prompt()).entry);
  }
  const auto try_back = [&](int64_t rows) {
    const std::vector<const KvPages*> pages = use.pages();
    for (;;) {
      const Status status = engine_.bring_back(sequence.kv_place(), promise.budget, promise.chunks,
                                               sequence.cached(), pages, vacant());
      const bool no_room = status.code() == Code::kCapacity;
      if (!no_room || engine_.kv().sequence_bytes(rows) > free_bytes() || !evict()) return status;
    }
  };
  const int64_t rows = std::min(promise.positions, sequence.cached() + 1);
  Status status = try_back(rows - use.blocks() * kKvBlockRows);
  if (status.code() == Code::kCapacity && !use.empty()) {
    use.reset();  // Its own copy may lie on every tier.
    status = try_back(rows);
  }
  if (status.ok()) sequence.prefix() = std::move(use);
  return status;
}

void KvRoom::end_sweep(Sequence& sequence) {
  prefixes_.computed(sequence.prefix(), sequence.cached() / kKvBlockRows);
  const WholeBeginnings::Use& beginning = sequence.beginning();
  if (beginning == nullptr) return;
  if (sequence.cached() >= beginning->blocks() * kKvBlockRows) beginning->computed = true;
  if (sequence.prefilling()) return;
  sequence.kv()->beginning = {};  // It has chosen the rows that it keeps.
  sequence.set_beginning(nullptr);
}

void KvRoom::release(Sequence& sequence) {
  if (sequence.kv() != nullptr) release_on_all(engine_, others_, sequence.take_kv());
  sequence.prefix().reset();
  sequence.set_beginning(nullptr);
}

}  // namespace spillway
