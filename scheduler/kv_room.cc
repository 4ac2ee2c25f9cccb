#include "scheduler/kv_room.h"

#include <algorithm>
#include <utility>

namespace spillway {

namespace {

// Beginnings lie in the device's memory, in the blocks that attention reads there.
uint64_t prefix_bytes_max(const Engine& engine, uint64_t wanted) {
  const bool possible =
      engine.shape().layers_with_window() == 0 && !engine.options().host_attention;
  return possible ? std::min(wanted, engine.kv().memory_bytes()) : 0;
}

}  // namespace

KvRoom::KvRoom(Engine& engine, uint64_t prefix_bytes)
    : engine_(engine),
      needs_(engine.kv(),
             engine.kv().aside_bytes() > 0 && engine.shape().layers_with_window() == 0),
      prefixes_(engine.kv(), prefix_bytes_max(engine, prefix_bytes)) {}

uint64_t KvRoom::promised_max() const {
  return std::max(engine_.kv().total_bytes(), engine_.kv().aside_bytes());
}

// Whoever wants the logits of the whole prompt computes it.
bool KvRoom::may_share(const Sequence& sequence) const {
  return shares() && sequence.promise().budget.full() && !sequence.wants_prompt_logits() &&
         !sequence.alone();
}

KvRoom::Offer KvRoom::offer(const Sequence& next) {
  Offer offer{.bytes = needs_.likely_bytes(next)};
  if (!may_share(next)) return offer;
  const PrefixCache::Found found = prefixes_.find(next.salt(), next.prompt());
  offer.cached = found.blocks * kKvBlockRows;
  offer.bytes -=
      std::min(offer.bytes, static_cast<uint64_t>(found.used_blocks) * engine_.kv().page_bytes());
  const int64_t left = next.prompt_tokens() - offer.cached;
  offer.better_later = 2 * found.computing_blocks * kKvBlockRows >= left;
  return offer;
}

// Calls try_reserve() until it succeeds, as long as there are beginnings that nobody uses to make
// room for `bytes`.
template <class Reserve>
auto KvRoom::reserve(uint64_t bytes, const Reserve& try_reserve) {
  const KvCache& kv = engine_.kv();
  for (;;) {
    auto reserved = try_reserve();
    const bool may_fit = bytes <= kv.total_bytes() - used_bytes();
    if (reserved || !may_fit || !prefixes_.evict()) return reserved;
  }
}

// Pages for what the sequence computes of its prompt. Where they could lie on other tiers, only for
// what an earlier prompt began with, too.
PrefixCache::Use KvRoom::extend(const Sequence& next, const PrefixCache::Found& found) {
  const KvCache& kv = engine_.kv();
  int64_t blocks = PrefixCache::blocks_of(next.prompt_tokens());
  if (kv.host_bytes() + kv.disk_bytes() > 0)
    blocks = seen_.note(next.salt(), next.prompt(), blocks);
  if (blocks <= found.blocks) return {};
  blocks -= found.blocks;
  const uint64_t bytes = static_cast<uint64_t>(blocks) * kv.page_bytes();
  PrefixCache::Use use;
  reserve(bytes, [&] {
    use = prefixes_.extend(next.salt(), next.prompt(), found, blocks);
    return !use.empty() || found.computing_blocks > 0;
  });
  return use;
}

Status KvRoom::reserve(Sequence& next, PrefixCache::Use use, int64_t cached, uint64_t number,
                       double now) {
  const SequenceKv& promise = next.promise();
  const std::vector<const KvPages*> pages = use.pages();
  const int64_t first = needs_.positions_at_first(next);
  const int64_t rows = (first > 0 ? first : promise.positions) - use.blocks() * kKvBlockRows;
  Status status;
  std::unique_ptr<KvSequence> kv = reserve(
      engine_.kv().sequence_bytes(rows, promise.budget), [&]() -> std::unique_ptr<KvSequence> {
        auto found =
            engine_.reserve(promise.positions, promise.budget, promise.chunks, first, pages);
        status = found.status();
        return found.ok() ? std::move(found).value() : nullptr;
      });
  if (kv != nullptr) next.admit(std::move(kv), std::move(use), cached, number, now);
  return status;
}

Status KvRoom::admit(Sequence& next, uint64_t number, double now) {
  if (!may_share(next)) return reserve(next, {}, 0, number, now);
  const PrefixCache::Found found = prefixes_.find(next.salt(), next.prompt());
  const int64_t cached = found.blocks * kKvBlockRows;
  PrefixCache::Use known(prefixes_, found.entry);
  PrefixCache::Use longer = extend(next, found);
  if (!longer.empty()) {
    const Status status = reserve(next, std::move(longer), cached, number, now);
    if (status.code() != Code::kCapacity) return status;
  }
  return reserve(next, std::move(known), cached, number, now);
}

bool KvRoom::grow(Sequence& sequence, int64_t positions) {
  const KvSequence& kv = *sequence.kv();
  const int64_t more = std::max<int64_t>(0, positions - kv.positions());
  return reserve(static_cast<uint64_t>(kv_blocks(more)) * engine_.kv().page_bytes(),
                 [&] { return engine_.grow(*sequence.kv(), positions); });
}

Status KvRoom::set_aside(Sequence& sequence) {
  SPILLWAY_RETURN_IF_ERROR(engine_.set_aside(sequence.kv_place(), sequence.cached()));
  sequence.prefix().reset();
  return {};
}

Status KvRoom::bring_back(Sequence& sequence) {
  const SequenceKv& promise = sequence.promise();
  PrefixCache::Use use;
  if (may_share(sequence)) {
    use = PrefixCache::Use(prefixes_, prefixes_.find(sequence.salt(), sequence.prompt()).entry);
  }
  const auto try_back = [&](uint64_t bytes) {
    const std::vector<const KvPages*> pages = use.pages();
    Status status;
    reserve(bytes, [&] {
      status = engine_.bring_back(sequence.kv_place(), promise.budget, promise.chunks,
                                  sequence.cached(), pages);
      return status.code() != Code::kCapacity;
    });
    return status;
  };
  const int64_t rows = std::min(promise.positions, sequence.cached() + 1);
  Status status = try_back(engine_.kv().sequence_bytes(rows - use.blocks() * kKvBlockRows));
  if (status.code() == Code::kCapacity && !use.empty()) {
    use.reset();  // Its own copy may lie on every tier.
    status = try_back(engine_.kv().sequence_bytes(rows));
  }
  if (status.ok()) sequence.prefix() = std::move(use);
  return status;
}

void KvRoom::end_sweep(const Sequence& sequence) {
  if (!sequence.prefilling()) prefixes_.computed(sequence.prefix());
}

void KvRoom::release(Sequence& sequence) {
  if (sequence.kv() != nullptr) engine_.release(sequence.take_kv());
  sequence.prefix().reset();
}

}  // namespace spillway
