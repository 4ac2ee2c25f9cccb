#include "policy/batching.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/linear_shapes.h"

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
  const int64_t half = limits.prefill_tokens / 2;
  if (goes_in_chunks(next.prompt_tokens, limits.prefill_tokens)) {
    const bool begins = !sweep.long_prompt && sweep.prompt_tokens <= half;
    return std::max<int64_t>(0, std::min<int64_t>(room, begins ? 1 : 0));
  }
  const int64_t most = sweep.long_prompt ? half : limits.prefill_tokens;
  int64_t by_tokens = (most - sweep.prompt_tokens) / next.prompt_tokens;
  if (sweep.prompt_tokens == 0) by_tokens = std::max<int64_t>(1, by_tokens);
  return std::max<int64_t>(0, std::min(room, by_tokens));
}

double positions_per_token(const ModelShape& shape) {
  double linear = 0;
  for (const LinearShape& matrix : linear_shapes(shape)) {
    if (!matrix.in_layer) continue;
    linear += static_cast<double>(matrix.outputs) * static_cast<double>(matrix.inputs);
  }
  const int64_t growing = shape.layers - shape.layers_with_window();
  if (growing == 0) return 0;
  return linear * static_cast<double>(shape.layers) /
         (2.0 * static_cast<double>(shape.query_width() * growing));
}

int64_t chunk_tokens(int64_t done, int64_t left, int64_t whole, const SweepLimits& limits) {
  constexpr int64_t kLeast = 64;
  const int64_t quarter = (limits.prefill_tokens + 3) / 4;
  const int64_t first = std::max(limits.prefill_tokens - whole, quarter);
  int64_t tokens = first;
  if (limits.positions_per_token > 0 && done > 0) {
    // Tokens t behind d positions take t (1 + (d + t / 2) / p) of a token's linear layers, where
    // attention to p positions takes as much as these.
    const double p = limits.positions_per_token, n = static_cast<double>(first);
    const double work = n * (1 + n / 2 / p), each = 1 + static_cast<double>(done) / p;
    const double found = p * (std::sqrt(each * each + 2 * work / p) - each);
    tokens = std::clamp(static_cast<int64_t>(found), std::min(kLeast, first), first);
  }
  return std::min(left, tokens);
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
