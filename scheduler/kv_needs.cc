#include "scheduler/kv_needs.h"

#include <algorithm>

namespace spillway {

uint64_t KvNeeds::most_bytes(const Sequence& sequence) const {
  const SequenceKv& promise = sequence.promise();
  return cache_.sequence_bytes(promise.positions, promise.budget, promise.chunks);
}

uint64_t KvNeeds::aside_bytes(const Sequence& sequence) const {
  return most_bytes(sequence) + static_cast<uint64_t>(cache_.layers().count) * kIoAlignment;
}

uint64_t KvNeeds::likely_bytes(const Sequence& sequence) const {
  if (!grows(sequence)) return most_bytes(sequence);
  const SequenceKv& promise = sequence.promise();
  const int64_t now = std::max(sequence.prompt_tokens(), sequence.cached());
  const int64_t more = expected_.left(sequence.generated(), sequence.tokens_max());
  const uint64_t bytes = cache_.sequence_bytes(std::min(promise.positions, now + more),
                                               promise.budget, promise.chunks);
  const int64_t shared = sequence.kv() == nullptr ? 0 : sequence.kv()->shared_blocks;
  // Of a shared block it has an address in each layer's block table.
  const uint64_t saved = cache_.page_bytes() - static_cast<uint64_t>(cache_.layers().count) * 8;
  return bytes - std::min(bytes, static_cast<uint64_t>(shared) * saved);
}

int64_t KvNeeds::positions_at_first(const Sequence& sequence) const {
  return grows(sequence) ? std::min(sequence.promise().positions, sequence.prompt_tokens() + 1) : 0;
}

}  // namespace spillway
