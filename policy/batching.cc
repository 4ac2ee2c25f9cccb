#include "policy/batching.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/linear_shapes.h"

namespace spillway {

namespace {

constexpr int64_t kLeastChunk = 64;  // Tokens

// The number of sequences of `rows` each that the micro-batch can still take.
int64_t room_of(const MicroBatch& batch, int64_t rows, const MicroBatchLimits& limits) {
  int64_t room = (limits.rows - batch.rows) / rows;
  if (batch.items == 0) room = std::max<int64_t>(1, room);
  if (limits.sequences == 0) return room;
  return std::min(room, limits.sequences - static_cast<int64_t>(batch.items));
}

}  // namespace

AdmittedRequests requests_admitted(const WaitingRequests& next, const SweepContents& sweep,
                                   const SweepLimits& limits) {
  int64_t places = std::min(next.count, limits.block_sequences - sweep.sequences);
  if (next.kv_bytes > 0) {
    const uint64_t left = limits.kv_bytes - std::min(limits.kv_bytes, sweep.kv_bytes);
    places = std::min(places, static_cast<int64_t>(left / next.kv_bytes));
  }
  if (places <= 0) return {};
  const int64_t part = sweep.prompt_in_chunks > 0 ? 2 : 1;
  // What is left of the target, and of what the sweep can take.
  const int64_t wanted = limits.target() / part - sweep.owed - sweep.prompt_tokens;
  const int64_t room = limits.prefill_tokens / part - sweep.prompt_tokens;
  if (goes_in_chunks(next.prompt_tokens, limits.prefill_tokens)) {
    const int64_t half = limits.target() / 2;
    return {0, part == 1 && sweep.owed + sweep.prompt_tokens <= half};
  }
  const bool beside_long = goes_in_chunks(sweep.prompt_in_chunks, limits.prefill_tokens);
  if (next.may_be_cut && !beside_long) {
    const int64_t whole = std::min(places, std::max<int64_t>(0, wanted) / next.prompt_tokens);
    const int64_t rest = wanted - whole * next.prompt_tokens;
    const bool cut = part == 1 && whole < places && rest >= std::min(kLeastChunk, limits.target());
    return {whole, cut};
  }
  if (wanted <= 0 && (sweep.prompt_tokens > 0 || sweep.owed > 0)) return {};
  int64_t whole = std::min(room, wanted + next.prompt_tokens - 1) / next.prompt_tokens;
  if (sweep.prompt_tokens == 0) whole = std::max<int64_t>(1, whole);
  return {std::clamp<int64_t>(whole, 0, places), false};
}

bool joins_but_for_target(const WaitingRequests& next, SweepContents sweep, SweepLimits limits) {
  if (!limits.has_target()) return false;
  limits.prefill_target = 0;
  sweep.owed = 0;
  return requests_admitted(next, sweep, limits).count() > 0;
}

int64_t owed_after(const SweepContents& sweep, const SweepLimits& limits) {
  if (!limits.has_target()) return 0;
  const int64_t target = limits.target();
  const int64_t most = std::min({kLeastChunk, target, limits.prefill_tokens - target});
  return std::max(-most, sweep.owed + sweep.prompt_tokens - target);
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

int64_t chunk_tokens(int64_t done, int64_t left, int64_t taken, const SweepLimits& limits) {
  const int64_t target = limits.target();
  const int64_t quarter = (target + 3) / 4;
  const int64_t first =
      std::max(target - taken, done > 0 ? quarter : std::min(quarter, kLeastChunk));
  int64_t tokens = first;
  if (limits.positions_per_token > 0 && done > 0) {
    // Tokens t behind d positions take t (1 + (d + t / 2) / p) of a token's linear layers, where
    // attention to p positions takes as much as these.
    const double p = limits.positions_per_token, n = static_cast<double>(first);
    const double work = n * (1 + n / 2 / p), each = 1 + static_cast<double>(done) / p;
    const double found = p * (std::sqrt(each * each + 2 * work / p) - each);
    tokens = std::clamp(static_cast<int64_t>(found), std::min(kLeastChunk, first), first);
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
