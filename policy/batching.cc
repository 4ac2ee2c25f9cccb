#include "policy/batching.h"

#include <algorithm>

namespace spillway {

namespace {

// The number of sequences of `rows` each that the micro-batch can still take.
int64_t room_of(const MicroBatch& batch, int64_t rows, const MicroBatchLimits& limits) {
  int64_t room = (limits.rows - batch.rows) / rows;
  if (batch.items == 0) room = std::max<int64_t>(1, room);
  if (limits.sequences == 0) return room;
  return std::min(room, limits.sequences - static_cast<int64_t>(batch.items));
}

}  // namespace

int64_t requests_admitted(const WaitingRequests& next, const SweepContents& sweep,
                          const SweepLimits& limits) {
  int64_t room = std::min(next.count, limits.block_sequences - sweep.sequences);
  if (next.kv_bytes > 0) {
    const uint64_t left = limits.kv_bytes - std::min(limits.kv_bytes, sweep.kv_bytes);
    room = std::min(room, static_cast<int64_t>(left / next.kv_bytes));
  }
  int64_t by_tokens = (limits.prefill_tokens - sweep.prompt_tokens) / next.prompt_tokens;
  if (sweep.prompt_tokens == 0) by_tokens = std::max<int64_t>(1, by_tokens);
  return std::max<int64_t>(0, std::min(room, by_tokens));
}

void add_to_micro_batches(int64_t count, int64_t rows, const MicroBatchLimits& limits,
                          std::vector<MicroBatch>* batches) {
  while (count > 0) {
    int64_t room = batches->empty() ? 0 : room_of(batches->back(), rows, limits);
    if (room <= 0) {
      const size_t next = batches->empty() ? 0 : batches->back().first_item + batches->back().items;
      batches->push_back({next, 0, 0});
      room = room_of(batches->back(), rows, limits);
    }
    const int64_t added = std::min(room, count);
    batches->back().items += static_cast<size_t>(added);
    batches->back().rows += added * rows;
    count -= added;
  }
}

}  // namespace spillway
